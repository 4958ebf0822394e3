#include "attention/direct/backend.h"
#include "core/check.h"

namespace quaver::direct {

std::unique_ptr<DirectAttention::Backend> make_cuda_backend(int index) {
  fail(ErrorKind::kUnsupported, "device cuda:", index,
       ": expected cpu, this build has no CUDA (configure with -DQUAVER_CUDA=ON)");
}

}  // namespace quaver::direct
