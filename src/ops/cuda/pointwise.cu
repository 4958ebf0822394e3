#include "ops/cuda/launch_rows.h"
#include "ops/cuda/pointwise.cuh"

namespace quaver::device_ops {
namespace {

constexpr RowKernels<EmbedParameters> kEmbed{quaver_embed<1>, quaver_embed<3>};
constexpr RowKernels<LastRowsParameters> kLastRows{quaver_last_rows<1>, quaver_last_rows<3>, quaver_last_rows<7>};
template <class Share>
constexpr RowKernels<QuantizeParameters> kQuantize{quaver_quantize<1, Share>, quaver_quantize<3, Share>,
                                                   quaver_quantize<7, Share>};
template <class Share>
constexpr RowKernels<GegluParameters> kGeglu{quaver_geglu<1, Share>, quaver_geglu<3, Share>, quaver_geglu<7, Share>};

}  // namespace

void embed_tokens(const EmbedArgs& args, cudaStream_t stream) {
  check_rows(args.num_tokens, args.hidden_size, kMaxHiddenSize);
  check(args.vocab_size > 0, "vocab size ", args.vocab_size, ": expected > 0");
  if (args.num_tokens == 0) return;
  check_pointer("embedding", args.table);
  check_pointer("token ids", args.token_ids, 4);
  check_pointer("hidden", args.hidden);
  const RowShape shape = row_shape(args.hidden_size);
  launch(kEmbed.of(shape), dim3(static_cast<unsigned>(args.num_tokens)), shape.threads, 0, stream,
         {.table = args.table,
          .vocab_size = args.vocab_size,
          .token_ids = args.token_ids,
          .scale = args.scale,
          .columns = static_cast<int>(args.hidden_size),
          .hidden = args.hidden});
}

void last_rows(const LastRowsArgs& args, cudaStream_t stream) {
  check_rows(args.num_sequences, args.width, kMaxColumns);
  check(args.stride % kVector == 0 && args.stride >= args.width, "stride ", args.stride, ": expected a multiple of ",
        kVector, " from ", args.width, " on");
  if (args.num_sequences == 0) return;
  check_pointer("rows", args.rows);
  check_pointer("query_start", args.query_start, 4);
  check_pointer("out", args.out);
  launch_each(kLastRows, args.num_sequences,
              {.rows = args.rows,
               .stride = args.stride,
               .query_start = args.query_start,
               .columns = static_cast<int>(args.width),
               .out = args.out},
              stream);
}

void quantize(const QuantizeArgs& args, cudaStream_t stream) {
  check_rows(args.num_tokens, args.width, kMaxColumns);
  check(args.out.kind != InputKind::kBf16, "GEMM input kind bf16: expected an E4M3 kind");
  if (args.num_tokens == 0) return;
  check_pointer("rows", args.rows);
  check_output(args.out, args.num_tokens);
  const QuantizeParameters parameters{
      .rows = args.rows, .num_tokens = args.num_tokens, .columns = static_cast<int>(args.width), .out = args.out};
  if (launch_halves(kQuantize<TwoHalves>, parameters, stream)) return;
  launch_each(kQuantize<LonePair>, (args.num_tokens + 1) / 2, parameters, stream);
}

void geglu_quantize(const GegluQuantizeArgs& args, cudaStream_t stream) {
  check_rows(args.num_tokens, args.intermediate_size, kMaxColumns);
  if (args.num_tokens == 0) return;
  check_pointer("gate and up", args.gate_up);
  check_output(args.out, args.num_tokens);
  const GegluParameters parameters{.gate_up = args.gate_up,
                                   .num_tokens = args.num_tokens,
                                   .columns = static_cast<int>(args.intermediate_size),
                                   .out = args.out};
  if (launch_halves(kGeglu<TwoHalves>, parameters, stream)) return;
  launch_pairs(kGeglu<TwoTokens>, 2, parameters, stream);
}

}  // namespace quaver::device_ops
