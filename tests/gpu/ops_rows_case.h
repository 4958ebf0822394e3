// The fused ops with a CTA a token, each against float64 and, where bits are to be equal, against the CPU's. Every
// check runs the op twice into poisoned buffers and expects the same bits. Shared by the GPU and the emulated machine.
#pragma once

#include "ops_input.h"

namespace quaver::testing {

inline constexpr InputKind kInputKinds[] = {InputKind::kBf16, InputKind::kPerToken, InputKind::kPerBlock,
                                            InputKind::kStatic};

inline constexpr InputKind kE4M3Kinds[] = {InputKind::kPerToken, InputKind::kPerBlock, InputKind::kStatic};

[[nodiscard]] const char* kind_name(InputKind kind);

/// Rows N(0, size), among them (where there are enough) zeros, tiny ones and one with outliers.
[[nodiscard]] std::vector<Bf16> test_rows(int64_t rows, int64_t columns, uint64_t seed, float size = 1.0F);
/// Norm weights around 1.
[[nodiscard]] std::vector<float> test_weights(int64_t columns, uint64_t seed);

void check_embed(int64_t tokens, int64_t columns);
void check_rope_table(int64_t tokens, int head_dim, int rotary_pairs, double theta, double factor);
void check_norm_quantize(const InputShape& shape);
void check_add_norm_quantize(const InputShape& shape, float layer_scalar);
/// Without an output: the last layer.
void check_add_norm(int64_t tokens, int64_t columns);
void check_geglu_quantize(const InputShape& shape);
void check_last_rows(int64_t sequences, int64_t columns);
void check_quantize(const InputShape& shape);
void check_final_norm(int64_t rows, int64_t columns);
/// Some of `shape.tokens` tokens have the same bits when they are the only one: norms, gate and quantisation.
void check_rows_alone(const InputShape& shape);

}  // namespace quaver::testing
