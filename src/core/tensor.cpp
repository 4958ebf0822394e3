#include "quaver/tensor.h"

#include "core/check.h"

namespace quaver {

int64_t dtype_bytes(DType dtype) noexcept {
  switch (dtype) {
    case DType::kF64:
    case DType::kI64: return 8;
    case DType::kF32:
    case DType::kI32: return 4;
    case DType::kBF16:
    case DType::kF16: return 2;
    case DType::kE4M3:
    case DType::kU8: return 1;
  }
  return 0;
}

std::string_view dtype_name(DType dtype) noexcept {
  switch (dtype) {
    case DType::kF32: return "f32";
    case DType::kF64: return "f64";
    case DType::kBF16: return "bf16";
    case DType::kF16: return "f16";
    case DType::kE4M3: return "e4m3";
    case DType::kU8: return "u8";
    case DType::kI32: return "i32";
    case DType::kI64: return "i64";
  }
  return "unknown";
}

std::string to_string(Device device) {
  return device.kind == Device::Kind::kCpu ? "cpu" : concat("cuda:", device.index);
}

std::string to_string(const ConstTensorView& view) {
  if (!view.given()) return "not given";
  std::string text(dtype_name(view.dtype));
  text += '[';
  for (int axis = 0; axis < view.rank; ++axis) text += concat(axis == 0 ? "" : ", ", view.dim(axis));
  return text + "] on " + to_string(view.device);
}

}  // namespace quaver
