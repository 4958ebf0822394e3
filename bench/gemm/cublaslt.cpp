#include "gemm/cublaslt.h"

#if __has_include(<cublasLt.h>)
#include <cublasLt.h>
#include <dlfcn.h>

#include "core/check.h"

namespace quaver::bench {
namespace {

constexpr size_t kWorkspaceBytes = size_t{64} << 20;

/// The functions of the library that are called here.
struct Functions {
  template <class Function>
  static Function* find(void* library, const char* name) {
    auto* function = reinterpret_cast<Function*>(dlsym(library, name));
    check_as(ErrorKind::kNotFound, function != nullptr, name, ": expected in libcublasLt");
    return function;
  }
  explicit Functions(void* library)
      : create(find<decltype(cublasLtCreate)>(library, "cublasLtCreate")),
        version(find<decltype(cublasLtGetVersion)>(library, "cublasLtGetVersion")),
        create_desc(find<decltype(cublasLtMatmulDescCreate)>(library, "cublasLtMatmulDescCreate")),
        set_desc(find<decltype(cublasLtMatmulDescSetAttribute)>(library, "cublasLtMatmulDescSetAttribute")),
        create_layout(find<decltype(cublasLtMatrixLayoutCreate)>(library, "cublasLtMatrixLayoutCreate")),
        create_preference(find<decltype(cublasLtMatmulPreferenceCreate)>(library, "cublasLtMatmulPreferenceCreate")),
        set_preference(
            find<decltype(cublasLtMatmulPreferenceSetAttribute)>(library, "cublasLtMatmulPreferenceSetAttribute")),
        heuristic(find<decltype(cublasLtMatmulAlgoGetHeuristic)>(library, "cublasLtMatmulAlgoGetHeuristic")),
        matmul(find<decltype(cublasLtMatmul)>(library, "cublasLtMatmul")) {}

  decltype(cublasLtCreate)* create;
  decltype(cublasLtGetVersion)* version;
  decltype(cublasLtMatmulDescCreate)* create_desc;
  decltype(cublasLtMatmulDescSetAttribute)* set_desc;
  decltype(cublasLtMatrixLayoutCreate)* create_layout;
  decltype(cublasLtMatmulPreferenceCreate)* create_preference;
  decltype(cublasLtMatmulPreferenceSetAttribute)* set_preference;
  decltype(cublasLtMatmulAlgoGetHeuristic)* heuristic;
  decltype(cublasLtMatmul)* matmul;
};

void check_lt(cublasStatus_t status, const char* call) {
  check_as(ErrorKind::kCuda, status == CUBLAS_STATUS_SUCCESS, call, ": status ", static_cast<int>(status));
}

/// Descriptions live as long as the program: a handful for each case.
class LtYardstick final : public Yardstick {
 public:
  LtYardstick(const Functions& lt, cublasLtHandle_t handle, void* workspace, const YardstickShape& shape,
              const float* token_scales, const float* weight_scales)
      : lt_(lt), handle_(handle), workspace_(workspace) {
    check_lt(lt.create_desc(&desc_, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate");
    // Column-major terms: D[N, M] = W'[K, N]^T X'[K, M].
    set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
    set(CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N);
    const auto mode = shape.scales == ScaleKind::kRowWise ? CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F
                                                          : CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
    set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, mode);
    set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, mode);
    set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, weight_scales);
    set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, token_scales);
    set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, static_cast<int8_t>(shape.fast_accumulation ? 1 : 0));
    const auto n = static_cast<uint64_t>(shape.n);
    const auto m = static_cast<uint64_t>(shape.m);
    const auto k = static_cast<uint64_t>(shape.k);
    check_lt(lt.create_layout(&a_, CUDA_R_8F_E4M3, k, n, shape.k), "cublasLtMatrixLayoutCreate");
    check_lt(lt.create_layout(&b_, CUDA_R_8F_E4M3, k, m, shape.k), "cublasLtMatrixLayoutCreate");
    check_lt(lt.create_layout(&d_, CUDA_R_16BF, n, m, shape.n), "cublasLtMatrixLayoutCreate");
    cublasLtMatmulPreference_t preference = nullptr;
    check_lt(lt.create_preference(&preference), "cublasLtMatmulPreferenceCreate");
    check_lt(lt.set_preference(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &kWorkspaceBytes,
                               sizeof(kWorkspaceBytes)),
             "cublasLtMatmulPreferenceSetAttribute");
    int found = 0;
    const cublasStatus_t status = lt.heuristic(handle, desc_, a_, b_, d_, d_, preference, 1, &choice_, &found);
    usable_ = status == CUBLAS_STATUS_SUCCESS && found > 0;
  }

  [[nodiscard]] bool usable() const noexcept { return usable_; }

  void run(const uint8_t* weight, const uint8_t* tokens, void* out, cudaStream_t stream) override {
    const float one = 1.0F;
    const float zero = 0.0F;
    check_lt(lt_.matmul(handle_, desc_, &one, weight, a_, tokens, b_, &zero, out, d_, out, d_, &choice_.algo,
                        workspace_, kWorkspaceBytes, stream),
             "cublasLtMatmul");
  }

 private:
  template <class Value>
  void set(cublasLtMatmulDescAttributes_t attribute, const Value& value) {
    check_lt(lt_.set_desc(desc_, attribute, &value, sizeof(value)), "cublasLtMatmulDescSetAttribute");
  }

  const Functions& lt_;
  cublasLtHandle_t handle_;
  void* workspace_;
  cublasLtMatmulDesc_t desc_ = nullptr;
  cublasLtMatrixLayout_t a_ = nullptr, b_ = nullptr, d_ = nullptr;
  cublasLtMatmulHeuristicResult_t choice_{};
  bool usable_ = false;
};

class OpenCublasLt final : public CublasLt {
 public:
  explicit OpenCublasLt(void* library) : lt_(library), workspace_(static_cast<int64_t>(kWorkspaceBytes)) {
    check_lt(lt_.create(&handle_), "cublasLtCreate");
  }
  std::unique_ptr<Yardstick> prepare(const YardstickShape& shape, const float* token_scales,
                                     const float* weight_scales) override {
    auto yardstick = std::make_unique<LtYardstick>(lt_, handle_, workspace_.data(), shape, token_scales, weight_scales);
    if (!yardstick->usable()) return nullptr;
    return yardstick;
  }
  [[nodiscard]] std::string version() const override { return std::to_string(lt_.version()); }

 private:
  Functions lt_;
  DeviceBuffer<uint8_t> workspace_;
  cublasLtHandle_t handle_ = nullptr;
};

}  // namespace

std::unique_ptr<CublasLt> open_cublaslt() {
  void* library = dlopen("libcublasLt.so.13", RTLD_NOW);
  if (library == nullptr) return nullptr;
  return std::make_unique<OpenCublasLt>(library);
}

}  // namespace quaver::bench

#else

namespace quaver::bench {

std::unique_ptr<CublasLt> open_cublaslt() {
  return nullptr;
}

}  // namespace quaver::bench

#endif
