// Non-owning tensor views: pointer, element type, shape, strides, device.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>

#include "quaver/error.h"

namespace quaver {

/// Element types that cross Quaver's public interface.
enum class DType : uint8_t { kF32, kF64, kBF16, kF16, kE4M3, kU8, kI32, kI64 };

/// Bytes of one element.
[[nodiscard]] int64_t dtype_bytes(DType dtype) noexcept;

/// Lower-case name as it appears in messages: "f32", "bf16", "e4m3", …
[[nodiscard]] std::string_view dtype_name(DType dtype) noexcept;

/// Where memory lives.
struct Device {
  enum class Kind : uint8_t { kCpu, kCuda };
  Kind kind = Kind::kCpu;
  int index = 0;
  friend bool operator==(const Device&, const Device&) = default;
};

/// "cpu" or "cuda:0".
[[nodiscard]] std::string to_string(Device device);

inline constexpr int kMaxRank = 5;

/// A view of memory that somebody else owns. `Pointer` is `void*` or `const void*`.
/// Strides are in elements, may be zero (broadcast) and need not be ordered.
template <class Pointer>
struct BasicTensorView {
  Pointer data = nullptr;
  DType dtype = DType::kF32;
  int rank = 0;
  std::array<int64_t, kMaxRank> shape{};
  std::array<int64_t, kMaxRank> strides{};
  Device device{};

  BasicTensorView() = default;

  /// A dense row-major view.
  BasicTensorView(Pointer pointer, DType type, std::initializer_list<int64_t> dims, Device where = {})
      : data(pointer), dtype(type), device(where) {
    if (static_cast<int>(dims.size()) > kMaxRank) {
      throw Error(ErrorKind::kInvalidArgument, "tensor rank " + std::to_string(dims.size()) + ": expected at most 5");
    }
    for (int64_t dim : dims) {
      if (dim < 0)
        throw Error(ErrorKind::kInvalidArgument, "tensor dimension " + std::to_string(dim) + ": expected >= 0");
      shape[static_cast<size_t>(rank++)] = dim;
    }
    int64_t stride = 1;
    for (int axis = rank - 1; axis >= 0; --axis) {
      strides[static_cast<size_t>(axis)] = stride;
      stride *= shape[static_cast<size_t>(axis)];
    }
  }

  /// Mutable views convert to constant ones.
  template <class Other>
    requires(std::is_same_v<Pointer, const void*> && std::is_same_v<Other, void*>)
  BasicTensorView(const BasicTensorView<Other>& other)  // NOLINT(google-explicit-constructor): as T* to const T*
      : data(other.data),
        dtype(other.dtype),
        rank(other.rank),
        shape(other.shape),
        strides(other.strides),
        device(other.device) {}

  /// False for a default-constructed view, which stands for "not given".
  [[nodiscard]] bool given() const noexcept { return data != nullptr; }
  [[nodiscard]] int64_t dim(int axis) const { return shape.at(static_cast<size_t>(axis)); }
  [[nodiscard]] int64_t stride(int axis) const { return strides.at(static_cast<size_t>(axis)); }
  [[nodiscard]] int64_t num_elements() const noexcept {
    int64_t count = 1;
    for (int axis = 0; axis < rank; ++axis) count *= shape[static_cast<size_t>(axis)];
    return count;
  }
};

using TensorView = BasicTensorView<void*>;
using ConstTensorView = BasicTensorView<const void*>;

/// "bf16[3, 4, 64] on cpu", for messages.
[[nodiscard]] std::string to_string(const ConstTensorView& view);

}  // namespace quaver
