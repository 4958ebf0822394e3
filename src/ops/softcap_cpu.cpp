#include "core/check.h"
#include "ops/softcap.h"

namespace quaver {

void softcap(float* x, int64_t count, double cap) {
  check(cap > 0, "softcap ", cap, ": expected a positive number");
  const Softcap limit = make_softcap(cap);
#pragma omp parallel for schedule(static) if (count > 4096)
  for (int64_t i = 0; i < count; ++i) x[i] = limit(x[i]);
}

}  // namespace quaver
