// Programmatic dependent launch and register budgets of warpgroups. One instruction per function.
#pragma once

namespace quaver::ptx {

/// PTX ISA "griddepcontrol.wait": returns when the kernels before this one in the stream have finished and their writes
/// are visible. A kernel launched with programmatic launch must execute it in a thread that its end depends on.
__device__ __forceinline__ void grid_dependency_wait() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

/// PTX ISA "griddepcontrol.launch_dependents": the next kernel may start while this one still runs.
__device__ __forceinline__ void launch_dependents() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

/// PTX ISA "setmaxnreg.inc": registers of each thread of the warpgroup, taken from the CTA's pool.
template <int kRegisters>
__device__ __forceinline__ void increase_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

/// PTX ISA "setmaxnreg.dec": gives registers back to the CTA's pool.
template <int kRegisters>
__device__ __forceinline__ void decrease_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace quaver::ptx
