#include "gemm/cublaslt.h"

#include "core/check.h"
#include "gemm/bf16_product.h"
#include "gemm/cublaslt_workspace.h"

#if __has_include(<cublasLt.h>)
#include <cublasLt.h>
#include <dlfcn.h>

#include <map>
#include <tuple>

namespace quaver {
namespace {

constexpr const char* kLibrary = "libcublasLt.so.13";

void check_lt(cublasStatus_t status, const char* call) {
  check_as(ErrorKind::kCuda, status == CUBLAS_STATUS_SUCCESS, call, ": status ", static_cast<int>(status));
}

/// The functions of the library that are called here.
struct Functions {
  template <class Function>
  static Function* find(void* library, const char* name) {
    auto* function = reinterpret_cast<Function*>(dlsym(library, name));
    check_as(ErrorKind::kNotFound, function != nullptr, name, ": expected in ", kLibrary);
    return function;
  }
  explicit Functions(void* library)
      : create(find<decltype(cublasLtCreate)>(library, "cublasLtCreate")),
        destroy(find<decltype(cublasLtDestroy)>(library, "cublasLtDestroy")),
        version(find<decltype(cublasLtGetVersion)>(library, "cublasLtGetVersion")),
        create_desc(find<decltype(cublasLtMatmulDescCreate)>(library, "cublasLtMatmulDescCreate")),
        destroy_desc(find<decltype(cublasLtMatmulDescDestroy)>(library, "cublasLtMatmulDescDestroy")),
        set_desc(find<decltype(cublasLtMatmulDescSetAttribute)>(library, "cublasLtMatmulDescSetAttribute")),
        create_layout(find<decltype(cublasLtMatrixLayoutCreate)>(library, "cublasLtMatrixLayoutCreate")),
        destroy_layout(find<decltype(cublasLtMatrixLayoutDestroy)>(library, "cublasLtMatrixLayoutDestroy")),
        create_preference(find<decltype(cublasLtMatmulPreferenceCreate)>(library, "cublasLtMatmulPreferenceCreate")),
        destroy_preference(find<decltype(cublasLtMatmulPreferenceDestroy)>(library, "cublasLtMatmulPreferenceDestroy")),
        set_preference(
            find<decltype(cublasLtMatmulPreferenceSetAttribute)>(library, "cublasLtMatmulPreferenceSetAttribute")),
        heuristic(find<decltype(cublasLtMatmulAlgoGetHeuristic)>(library, "cublasLtMatmulAlgoGetHeuristic")),
        matmul(find<decltype(cublasLtMatmul)>(library, "cublasLtMatmul")) {}

  decltype(cublasLtCreate)* create;
  decltype(cublasLtDestroy)* destroy;
  decltype(cublasLtGetVersion)* version;
  decltype(cublasLtMatmulDescCreate)* create_desc;
  decltype(cublasLtMatmulDescDestroy)* destroy_desc;
  decltype(cublasLtMatmulDescSetAttribute)* set_desc;
  decltype(cublasLtMatrixLayoutCreate)* create_layout;
  decltype(cublasLtMatrixLayoutDestroy)* destroy_layout;
  decltype(cublasLtMatmulPreferenceCreate)* create_preference;
  decltype(cublasLtMatmulPreferenceDestroy)* destroy_preference;
  decltype(cublasLtMatmulPreferenceSetAttribute)* set_preference;
  decltype(cublasLtMatmulAlgoGetHeuristic)* heuristic;
  decltype(cublasLtMatmul)* matmul;
};

/// The handle of an open library and the memory that its kernels may use.
struct Library {
  explicit Library(void* opened) : functions(opened) { check_lt(functions.create(&handle), "cublasLtCreate"); }
  ~Library() { functions.destroy(handle); }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
  Library(Library&&) = delete;
  Library& operator=(Library&&) = delete;

  Functions functions;
  cublasLtHandle_t handle = nullptr;
  DeviceBuffer<uint8_t> workspace{kCublasLtWorkspaceBytes};
};

/// Types and leading dimension of one product. In the library's column-major terms it is D[N, M] = W'[K, N]^T X'[K, M].
struct ProductShape {
  int64_t m = 0, n = 0, k = 0;
  cudaDataType in = CUDA_R_16BF;
  cudaDataType out = CUDA_R_16BF;
  int64_t out_stride = 0;
};

/// One product with the algorithm that the library's heuristic puts first.
class Product {
 public:
  Product(const Library& library, const ProductShape& shape) : library_(library) {
    const Functions& lt = library.functions;
    check_lt(lt.create_desc(&desc_, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate");
    set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
    set(CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N);
    const auto n = static_cast<uint64_t>(shape.n);
    const auto m = static_cast<uint64_t>(shape.m);
    const auto k = static_cast<uint64_t>(shape.k);
    check_lt(lt.create_layout(&weight_, shape.in, k, n, shape.k), "cublasLtMatrixLayoutCreate");
    check_lt(lt.create_layout(&tokens_, shape.in, k, m, shape.k), "cublasLtMatrixLayoutCreate");
    check_lt(lt.create_layout(&out_, shape.out, n, m, shape.out_stride), "cublasLtMatrixLayoutCreate");
  }
  ~Product() {
    const Functions& lt = library_.functions;
    lt.destroy_layout(out_);
    lt.destroy_layout(tokens_);
    lt.destroy_layout(weight_);
    lt.destroy_desc(desc_);
  }
  Product(const Product&) = delete;
  Product& operator=(const Product&) = delete;
  Product(Product&&) = delete;
  Product& operator=(Product&&) = delete;

  template <class Value>
  void set(cublasLtMatmulDescAttributes_t attribute, const Value& value) {
    check_lt(library_.functions.set_desc(desc_, attribute, &value, sizeof(value)), "cublasLtMatmulDescSetAttribute");
  }

  /// False where the library has no algorithm. `alignment`: of tokens and outputs (the library assumes 256). Parts of K
  /// may be added up in FP32 only with `fp32_parts`.
  [[nodiscard]] bool choose(uint32_t alignment, bool fp32_parts) {
    const Functions& lt = library_.functions;
    cublasLtMatmulPreference_t preference = nullptr;
    check_lt(lt.create_preference(&preference), "cublasLtMatmulPreferenceCreate");
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
      check_lt(lt.set_preference(preference, attribute, &value, sizeof(value)), "cublasLtMatmulPreferenceSetAttribute");
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<size_t>(kCublasLtWorkspaceBytes));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment);
    if (fp32_parts) {
      prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
    }
    int found = 0;
    const cublasStatus_t status =
        lt.heuristic(library_.handle, desc_, weight_, tokens_, out_, out_, preference, 1, &choice_, &found);
    lt.destroy_preference(preference);
    return status == CUBLAS_STATUS_SUCCESS && found > 0;
  }

  void run(const void* weight, const void* tokens, void* out, cudaStream_t stream) const {
    const float one = 1.0F;
    const float zero = 0.0F;
    check_lt(
        library_.functions.matmul(library_.handle, desc_, &one, weight, weight_, tokens, tokens_, &zero, out, out_, out,
                                  out_, &choice_.algo, library_.workspace.data(), library_.workspace.bytes(), stream),
        "cublasLtMatmul");
  }

 private:
  const Library& library_;
  cublasLtMatmulDesc_t desc_ = nullptr;
  cublasLtMatrixLayout_t weight_ = nullptr, tokens_ = nullptr, out_ = nullptr;
  cublasLtMatmulHeuristicResult_t choice_{};
};

class LtYardstick final : public Fp8Yardstick {
 public:
  LtYardstick(const Library& library, const Fp8Shape& shape, const float* token_scales, const float* weight_scales)
      : product_(library, {.m = shape.m, .n = shape.n, .k = shape.k, .in = CUDA_R_8F_E4M3, .out_stride = shape.n}) {
    const auto mode = shape.scales == Fp8ScaleKind::kRowWise ? CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F
                                                             : CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
    product_.set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, mode);
    product_.set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, mode);
    product_.set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, weight_scales);
    product_.set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, token_scales);
    product_.set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, static_cast<int8_t>(shape.fast_accumulation ? 1 : 0));
    constexpr uint32_t kBufferAlignment = 256;
    usable_ = product_.choose(kBufferAlignment, /*fp32_parts=*/false);
  }
  [[nodiscard]] bool usable() const noexcept { return usable_; }

  void run(const uint8_t* weight, const uint8_t* tokens, void* out, cudaStream_t stream) override {
    product_.run(weight, tokens, out, stream);
  }

 private:
  Product product_;
  bool usable_ = false;
};

/// Never closed: kernels of the library may outlive whoever asked for it.
void* open_library() {
  return dlopen(kLibrary, RTLD_NOW);
}

void* require_library() {
  void* library = open_library();
  const char* reason = library == nullptr ? dlerror() : nullptr;
  check_as(ErrorKind::kNotFound, library != nullptr, "cuBLASLt (", reason == nullptr ? "" : reason, "): expected ",
           kLibrary, " on the library path, of the CUDA 13 toolkit or the package nvidia-cublas");
  return library;
}

}  // namespace

class CublasLt::Impl {
 public:
  Impl() : library_(require_library()) {}

  const Product& product(const ProductShape& shape) {
    const Key key(shape.m, shape.n, shape.k, shape.out, shape.out_stride);
    std::unique_ptr<Product>& product = products_[key];
    if (!product) {
      auto chosen = std::make_unique<Product>(library_, shape);
      check_as(ErrorKind::kUnsupported, chosen->choose(kBf16TokenAlignment, /*fp32_parts=*/true), "BF16 product of ",
               shape.m, " tokens with [", shape.n, ", ", shape.k, "]: expected an algorithm in cuBLASLt");
      product = std::move(chosen);
    }
    return *product;
  }

  [[nodiscard]] const Library& library() const noexcept { return library_; }

 private:
  using Key = std::tuple<int64_t, int64_t, int64_t, cudaDataType, int64_t>;
  Library library_;
  std::map<Key, std::unique_ptr<Product>> products_;  // some hundred bytes a shape: 8,192 token counts are few MB
};

CublasLt::CublasLt() : impl_(std::make_unique<Impl>()) {}
CublasLt::~CublasLt() = default;

void CublasLt::multiply(const Bf16Weight& weight, const Bf16* x, int64_t m, const TensorView& out,
                        cudaStream_t stream) {
  if (m == 0) return;
  check_bf16_product(weight, x, m, out);
  impl_
      ->product({.m = m,
                 .n = weight.n,
                 .k = weight.k,
                 .out = out.dtype == DType::kF32 ? CUDA_R_32F : CUDA_R_16BF,
                 .out_stride = out.stride(0)})
      .run(weight.rows, x, out.data, stream);
}

std::unique_ptr<Fp8Yardstick> CublasLt::yardstick(const Fp8Shape& shape, const float* token_scales,
                                                  const float* weight_scales) {
  auto yardstick = std::make_unique<LtYardstick>(impl_->library(), shape, token_scales, weight_scales);
  if (!yardstick->usable()) return nullptr;
  return yardstick;
}

std::string CublasLt::version() const {
  return std::to_string(impl_->library().functions.version());
}

bool CublasLt::available() {
  return open_library() != nullptr;
}

}  // namespace quaver

#else

namespace quaver {

class CublasLt::Impl {};

CublasLt::CublasLt() {
  fail(ErrorKind::kUnsupported, "cuBLASLt: expected a build with cublasLt.h (of the CUDA 13 toolkit)");
}
CublasLt::~CublasLt() = default;
void CublasLt::multiply(const Bf16Weight&, const Bf16*, int64_t, const TensorView&, cudaStream_t) {}
std::unique_ptr<Fp8Yardstick> CublasLt::yardstick(const Fp8Shape&, const float*, const float*) {
  return nullptr;
}
std::string CublasLt::version() const {
  return {};
}
bool CublasLt::available() {
  return false;
}

}  // namespace quaver

#endif
