// Gemma 4 31B as `--model gemma-4-31b` has it, for tests of sizes: FP8 weights per channel.
#pragma once

#include "quaver/model.h"

namespace quaver::testing {

inline ModelConfig gemma_31b() {
  return load_model_config(QUAVER_SOURCE_DIR "/python/quaver/model_facts/gemma-4-31b");
}

}  // namespace quaver::testing
