#include <nanobind/nanobind.h>

#include "bindings/bindings.h"

NB_MODULE(_quaver, module) {
  module.doc() = "Quaver's C++ core";
  module.attr("__version__") = QUAVER_VERSION;
  quaver::bindings::bind_errors(module);
  quaver::bindings::bind_attention(module);
  quaver::bindings::bind_direct_attention(module);
  quaver::bindings::bind_kv_cache(module);
  quaver::bindings::bind_model(module);
  quaver::bindings::bind_generator(module);
  quaver::bindings::bind_engine(module);
  quaver::bindings::bind_profile(module);
}
