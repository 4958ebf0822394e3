// What each file of this folder adds to the module quaver._quaver.
#pragma once

#include <nanobind/nanobind.h>

namespace quaver::bindings {

void bind_errors(nanobind::module_& module);
void bind_attention(nanobind::module_& module);
void bind_direct_attention(nanobind::module_& module);
void bind_kv_cache(nanobind::module_& module);
void bind_model(nanobind::module_& module);
void bind_generator(nanobind::module_& module);
void bind_engine(nanobind::module_& module);
void bind_profile(nanobind::module_& module);

}  // namespace quaver::bindings
