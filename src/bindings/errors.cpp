// quaver::Error → the Python exception that include/quaver/error.h promises.
#include <new>

#include "bindings/bindings.h"
#include "quaver/error.h"

namespace quaver::bindings {
namespace {

PyObject* exception_type(ErrorKind kind) noexcept {
  switch (kind) {
    case ErrorKind::kInvalidArgument:
    case ErrorKind::kUnsupported: return PyExc_ValueError;
    case ErrorKind::kNotFound: return PyExc_FileNotFoundError;
    default: return PyExc_RuntimeError;
  }
}

}  // namespace

void bind_errors(nanobind::module_& /*module*/) {
  nanobind::register_exception_translator([](const std::exception_ptr& pointer, void* /*payload*/) {
    try {
      std::rethrow_exception(pointer);
    } catch (const Error& error) {
      PyErr_SetString(exception_type(error.kind()), error.what());
    }
  });
}

}  // namespace quaver::bindings
