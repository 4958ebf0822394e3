// The one error family of Quaver.
#pragma once

#include <stdexcept>
#include <string>

namespace quaver {

/// What went wrong, for callers that map errors to exit codes or HTTP statuses.
/// In Python kInvalidArgument and kUnsupported become ValueError, kNotFound FileNotFoundError,
/// everything else RuntimeError.
enum class ErrorKind {
  kInvalidArgument,  ///< a value that the caller passed is outside what the function accepts
  kUnsupported,      ///< a legal request that no kernel or loader here can serve
  kNotFound,         ///< a file, tensor or key that must exist does not
  kCorruptData,      ///< a file whose content contradicts itself or its size
  kIo,               ///< the operating system refused a read, map or write
  kOutOfMemory,      ///< host, device or page-pool memory is exhausted
  kCuda,             ///< a CUDA call or kernel launch failed
  kInternal,         ///< a broken invariant of Quaver itself
};

/// Thrown by every function that can fail. The message names the offending value and what was expected.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  [[nodiscard]] ErrorKind kind() const noexcept { return kind_; }

 private:
  ErrorKind kind_;
};

}  // namespace quaver
