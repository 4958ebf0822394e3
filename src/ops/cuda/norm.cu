#include "ops/cuda/launch_rows.h"
#include "ops/cuda/norm.cuh"

namespace quaver::device_ops {
namespace {

template <class Share>
constexpr RowKernels<NormParameters> kNorm{quaver_norm<1, Share>, quaver_norm<3, Share>};
constexpr RowKernels<AddNormParameters> kAddNormFew{quaver_add_norm<1>, quaver_add_norm<3>};
constexpr RowKernels<AddNormParameters> kAddNormMany{quaver_add_norm_pairs<1>, quaver_add_norm_pairs<3>};

void check_eps(float eps) {
  check(eps > 0, "eps ", eps, ": expected > 0");
}

void launch_norm(const NormParameters& parameters, cudaStream_t stream) {
  if (launch_neighbours(kNorm<TokenOfTwo>, 0, parameters, stream)) return;
  launch_each(kNorm<TokenPair>, (int64_t{parameters.num_tokens} + 1) / 2, parameters, stream);
}

}  // namespace

void norm_quantize(const NormQuantizeArgs& args, cudaStream_t stream) {
  check_rows(args.num_tokens, args.hidden_size, kMaxHiddenSize);
  check_eps(args.eps);
  if (args.num_tokens == 0) return;
  check_pointer("hidden", args.hidden);
  check_pointer("norm", args.norm);
  check_output(args.out, args.num_tokens);
  launch_norm({.rows = args.hidden,
               .num_tokens = static_cast<int>(args.num_tokens),
               .norm = args.norm,
               .eps = args.eps,
               .columns = static_cast<int>(args.hidden_size),
               .out = args.out},
              stream);
}

void add_norm_quantize(const AddNormQuantizeArgs& args, cudaStream_t stream) {
  check_rows(args.num_tokens, args.hidden_size, kMaxHiddenSize);
  check_eps(args.eps);
  if (args.num_tokens == 0) return;
  check_pointer("projected", args.projected);
  check_pointer("post norm", args.post_norm);
  check_pointer("hidden", args.hidden);
  if (args.next_norm != nullptr) {
    check_pointer("next norm", args.next_norm);
    check_output(args.out, args.num_tokens);
  }
  const AddNormParameters parameters{.projected = args.projected,
                                     .post_norm = args.post_norm,
                                     .hidden = args.hidden,
                                     .layer_scalar = args.layer_scalar,
                                     .next_norm = args.next_norm,
                                     .num_tokens = static_cast<int>(args.num_tokens),
                                     .eps = args.eps,
                                     .columns = static_cast<int>(args.hidden_size),
                                     .out = args.out};
  if (launch_neighbours(kAddNormFew, 1, parameters, stream)) return;
  launch_pairs(kAddNormMany, 2, parameters, stream);
}

void final_norm(const FinalNormArgs& args, cudaStream_t stream) {
  check_rows(args.num_rows, args.hidden_size, kMaxHiddenSize);
  check_eps(args.eps);
  if (args.num_rows == 0) return;
  check_pointer("hidden", args.hidden);
  check_pointer("rows", args.rows, 4);
  check_pointer("norm", args.norm);
  check_pointer("out", args.out);
  launch_norm({.rows = args.hidden,
               .gather = args.rows,
               .num_tokens = static_cast<int>(args.num_rows),
               .norm = args.norm,
               .eps = args.eps,
               .columns = static_cast<int>(args.hidden_size),
               .out = {.rows = args.out}},
              stream);
}

}  // namespace quaver::device_ops
