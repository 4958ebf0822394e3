// Seeded mutation fuzzing of everything that reads a stranger's file: a mutated file either parses or throws
// quaver::Error; it never crashes, never reads outside its bytes (ASan) and never throws anything else.
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>

#include "model/fp8_formats.h"
#include "model/safetensors.h"
#include "quaver/model.h"
#include "testing/quant_recipes.h"
#include "testing/tiny_gemma.h"

namespace quaver {
namespace {

/// QUAVER_FUZZ in the environment asks for more; docs/serving.md has the figures of a long run.
int num_rounds() {
  const char* const wanted = std::getenv("QUAVER_FUZZ");
  return wanted == nullptr ? 4000 : std::stoi(wanted);
}

/// Pieces that break parsers: limits of integers, structure in the wrong place, bytes that are no UTF-8.
constexpr std::array<std::string_view, 24> kPieces = {"0",
                                                      "-1",
                                                      "1e999",
                                                      "18446744073709551615",
                                                      "9223372036854775808",
                                                      "4294967296",
                                                      "1.5",
                                                      "null",
                                                      "true",
                                                      "\"\"",
                                                      "[",
                                                      "]",
                                                      "{",
                                                      "}",
                                                      ",",
                                                      ":",
                                                      "[[[[",
                                                      "\xff",
                                                      "\\u0000",
                                                      "\"F32\"",
                                                      "\"F4\"",
                                                      "[0,8]",
                                                      "[8,0]",
                                                      "NaN"};

class Mutator {
 public:
  explicit Mutator(unsigned seed) : generator_(seed) {}

  size_t below(size_t limit) { return std::uniform_int_distribution<size_t>(0, limit - 1)(generator_); }

  /// One to four edits of bytes, pieces, numbers, spans.
  std::string mutate(std::string text) {
    for (size_t edits = 1 + below(4); edits > 0 && !text.empty(); --edits) {
      const size_t at = below(text.size());
      const size_t length = std::min(1 + below(16), text.size() - at);
      switch (below(6)) {
        case 0: text[at] = static_cast<char>(below(256)); break;
        case 1: text.erase(at, length); break;
        case 2: text.insert(at, kPieces.at(below(kPieces.size()))); break;
        case 3: text.replace(at, length, kPieces.at(below(kPieces.size()))); break;
        case 4: text.insert(below(text.size()), text.substr(at, length)); break;
        default: replace_number(text, at); break;
      }
    }
    return text;
  }

 private:
  /// Replaces the first run of digits at or after `at`, so that the text stays valid JSON.
  void replace_number(std::string& text, size_t at) {
    const size_t begin = text.find_first_of("0123456789", at);
    if (begin == std::string::npos) return;
    const size_t end = std::min(text.find_first_not_of("0123456789", begin), text.size());
    text.replace(begin, end - begin, kPieces.at(below(8)));
  }

  std::mt19937 generator_;
};

struct Outcomes {
  int parsed = 0;
  int refused = 0;
};

/// Runs `read` on num_rounds() mutations of `text`; anything but success or quaver::Error fails the test.
template <class Read>
Outcomes fuzz(const std::string& text, unsigned seed, Read read) {
  Mutator mutator(seed);
  Outcomes outcomes;
  for (int round = num_rounds(); round > 0; --round) {
    const std::string mutated = mutator.mutate(text);
    try {
      read(mutated);
      ++outcomes.parsed;
    } catch (const Error& error) {
      ++outcomes.refused;
      EXPECT_EQ(std::string_view(error.what()).find('\n'), std::string_view::npos) << error.what();
    } catch (const std::exception& error) {
      ADD_FAILURE() << "not a quaver::Error: " << error.what() << "\nfor: " << mutated;
    }
  }
  return outcomes;
}

/// Parses a copy of exactly the text's size on the heap, so that ASan sees any read beyond it, and touches every byte
/// that a tensor claims.
int read_all_tensors(const std::string& text) {
  const auto copy = std::make_unique<std::byte[]>(text.size());
  std::memcpy(copy.get(), text.data(), text.size());
  int sum = 0;
  for (const auto& [name, tensor] : parse_safetensors({copy.get(), text.size()}, "fuzz")) {
    for (const std::byte byte : tensor.data) sum += std::to_integer<int>(byte);
  }
  return sum;
}

std::string small_checkpoint() {
  testing::SafetensorsWriter file;
  file.add_f32("model.norm.weight", {3}, {1, 2, 3});
  file.add_bf16("model.layers.0.mlp.up_proj.weight", {2, 3}, {1, 2, 3, 4, 5, 6});
  file.add_e4m3("model.layers.0.mlp.down_proj.weight", {4}, {1, 2, 3, 4});
  file.add_f32("scalar", {}, {1});
  return file.bytes();
}

TEST(Fuzz, SafetensorsFiles) {
  const Outcomes outcomes = fuzz(small_checkpoint(), 1, [](const auto& text) { (void)read_all_tensors(text); });
  EXPECT_GT(outcomes.parsed, 0);
  EXPECT_GT(outcomes.refused, 0);
}

TEST(Fuzz, SafetensorsHeadersWithARightLength) {
  const std::string file = small_checkpoint();
  uint64_t length = 0;
  std::memcpy(&length, file.data(), 8);
  const std::string header = file.substr(8, length);
  const std::string data = file.substr(8 + length);
  const Outcomes outcomes = fuzz(
      header, 2, [&](const auto& text) { (void)read_all_tensors(testing::SafetensorsWriter::assemble(text, data)); });
  EXPECT_GT(outcomes.parsed, 0);
  EXPECT_GT(outcomes.refused, 0);
}

TEST(Fuzz, EveryTruncationIsRefused) {
  const std::string file = small_checkpoint();
  for (size_t size = 0; size < file.size(); ++size) {
    EXPECT_THROW((void)read_all_tensors(file.substr(0, size)), Error) << size;
  }
}

TEST(Fuzz, Configs) {
  unsigned seed = 3;
  for (const auto& config : {testing::tiny_gemma3_config(), testing::tiny_gemma4_config()}) {
    const Outcomes outcomes = fuzz(config.dump(), seed++, [](const auto& text) {
      const ModelConfig parsed = parse_model_config(text);
      EXPECT_GT(parsed.hidden_size, 0);
      EXPECT_EQ(parsed.layers.size(), static_cast<size_t>(parsed.num_layers));
      for (const LayerConfig& layer : parsed.layers) {
        EXPECT_EQ(parsed.num_q_heads % layer.num_kv_heads, 0);
        EXPECT_LE(2 * layer.rotary_pairs, layer.head_dim);
      }
    });
    EXPECT_GT(outcomes.parsed, 0);
    EXPECT_GT(outcomes.refused, 0);
  }
}

TEST(Fuzz, QuantRecipes) {
  unsigned seed = 5;
  for (const auto& recipe : {testing::fp8_block(), testing::modelopt("FP8"), testing::blocks_128()}) {
    const Outcomes outcomes = fuzz(recipe.dump(), seed++, [](const auto& text) { (void)parse_quant_recipe(text); });
    EXPECT_GT(outcomes.refused, 0);
  }
}

}  // namespace
}  // namespace quaver
