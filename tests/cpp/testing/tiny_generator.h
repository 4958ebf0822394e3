// A Generator over a random tiny checkpoint, loaded from a folder as any model is.
#pragma once

#include <nlohmann/json.hpp>
#include <random>
#include <vector>

#include "engine/generator.h"
#include "testing/temp_dir.h"
#include "testing/tiny_gemma.h"

namespace quaver::testing {

inline Generator tiny_generator(const nlohmann::json& config, const GeneratorOptions& options) {
  const TempDir folder;
  folder.write("config.json", config.dump());
  random_checkpoint(parse_model_config(config.dump()), 11).write(folder.path() / "model.safetensors");
  return Generator::load(folder.path(), options);
}

/// Tokens of the tiny vocabulary, end-of-sequence ids excluded.
inline std::vector<int32_t> random_tokens(size_t count, unsigned seed = 5) {
  std::mt19937 random(seed);
  std::uniform_int_distribution<int32_t> token(6, 96);
  std::vector<int32_t> tokens(count);
  for (int32_t& id : tokens) id = token(random);
  return tokens;
}

}  // namespace quaver::testing
