#include "model/device_weights.h"

#include <algorithm>
#include <map>
#include <utility>

#include "core/check.h"
#include "gemm/packed_fp8/pack.h"
#include "model/device_memory.h"
#include "model/device_weight_plan.h"
#include "model/dummy.h"
#include "model/dummy_fill.h"
#include "model/safetensors.h"
#include "model/staging_ring.h"

namespace quaver {
namespace {

int64_t stored_row_bytes(const WeightPart& part) {
  return part.source.in_features() * dtype_bytes(part.source.weight.dtype);
}

/// Calls use(weight) for every weight of the plan, in the order of the device memory.
template <class Use>
void for_each_weight(const DeviceWeightPlan& plan, const Use& use) {
  use(plan.embedding);
  if (plan.lm_head) use(*plan.lm_head);
  for (const PlannedLayer& layer : plan.layers) {
    for (const PlannedWeight* weight : {&layer.qkv, &layer.o, &layer.gate_up, &layer.down}) use(*weight);
  }
}

/// Where the values of a weight come from.
class WeightWriter {
 public:
  virtual ~WeightWriter() = default;
  /// Queues everything that fills `weight`, which begins at `to`.
  virtual void write(const PlannedWeight& weight, uint8_t* to) = 0;
};

class CheckpointWriter final : public WeightWriter {
 public:
  CheckpointWriter(std::vector<std::shared_ptr<const MappedFile>> files, const DeviceWeightPlan& plan,
                   int64_t slot_bytes, cudaStream_t stream)
      : files_(std::move(files)), stream_(stream), ring_(std::max(slot_bytes, widest_row_bytes(plan)), stream) {}

  void write(const PlannedWeight& weight, uint8_t* to) override {
    for (const WeightPart& part : weight.parts) {
      if (weight.format == WeightFormat::kBf16) {
        write_bf16(part, to + part.first_row * weight.k * dtype_bytes(DType::kBF16));
      } else {
        write_packed(part, to);
      }
    }
    for (const auto& file : files_) file->drop_resident();
  }

 private:
  static int64_t widest_row_bytes(const DeviceWeightPlan& plan) {
    int64_t bytes = 0;
    for_each_weight(
        plan, [&](const PlannedWeight& weight) { bytes = std::max(bytes, weight.k * dtype_bytes(DType::kBF16)); });
    return bytes;
  }

  /// Calls send(first row, rows) for chunks that fit a slot.
  template <class Send>
  void for_chunks(const WeightPart& part, int64_t row_bytes, const Send& send) {
    const int64_t rows = part.source.out_features();
    const int64_t step = rows_per_chunk(row_bytes, ring_.slot_bytes());
    for (int64_t row = 0; row < rows; row += step) send(row, std::min(step, rows - row));
  }

  void write_bf16(const WeightPart& part, uint8_t* to) {
    const LinearWeight& source = part.source;
    const int64_t row_bytes = source.in_features() * dtype_bytes(DType::kBF16);
    for_chunks(part, row_bytes, [&](int64_t row, int64_t count) {
      ring_.send(count * row_bytes, to + row * row_bytes, [&](uint8_t* pinned) {
        if (source.weight.dtype == DType::kBF16) {
          copy_parallel(pinned, stored_row(part, row), count * row_bytes);
        } else {
          widen_to_bf16(source, row, count, reinterpret_cast<Bf16*>(pinned));
        }
      });
    });
  }

  void write_packed(const WeightPart& part, uint8_t* to) {
    const int64_t columns = part.source.in_features();
    for_chunks(part, columns, [&](int64_t row, int64_t count) {
      ring_.send(
          count * columns, [&](uint8_t* pinned) { copy_parallel(pinned, stored_row(part, row), count * columns); },
          [&](const uint8_t* on_device) {
            packed_fp8::pack_rows({.source = on_device,
                                   .row_stride = columns,
                                   .rows = count,
                                   .columns = columns,
                                   .packed = to,
                                   .first_row = part.packed_row(row),
                                   .group_stride = part.group_stride},
                                  stream_);
          });
    });
  }

  static const uint8_t* stored_row(const WeightPart& part, int64_t row) {
    return static_cast<const uint8_t*>(part.source.weight.data) + row * stored_row_bytes(part);
  }

  std::vector<std::shared_ptr<const MappedFile>> files_;
  cudaStream_t stream_;
  StagingRing ring_;
};

class DummyWriter final : public WeightWriter {
 public:
  DummyWriter(const DeviceWeightPlan& plan, uint64_t seed, cudaStream_t stream)
      : seed_(seed), stream_(stream), codes_(upload(dummy_codes())), rows_(most_codes(plan)) {}

  void write(const PlannedWeight& weight, uint8_t* to) override {
    for (const WeightPart& part : weight.parts) {
      const int64_t count = part.source.weight.num_elements();
      const uint64_t bits = dummy_stream(seed_, part.ordinal);
      if (weight.format == WeightFormat::kBf16) {
        auto* rows = reinterpret_cast<Bf16*>(to) + part.first_row * weight.k;
        dummy_fill({.out = rows, .count = count, .table = bf16_table(part.source), .stream = bits}, stream_);
        continue;
      }
      dummy_fill({.out = rows_.data(), .count = count, .table = codes_.data(), .stream = bits}, stream_);
      packed_fp8::pack_rows({.source = rows_.data(),
                             .row_stride = weight.k,
                             .rows = part.source.out_features(),
                             .columns = weight.k,
                             .packed = to,
                             .first_row = part.first_row,
                             .group_stride = part.group_stride},
                            stream_);
    }
  }

 private:
  template <class T>
  static DeviceBuffer<T> upload(const std::vector<T>& values) {
    DeviceBuffer<T> buffer(std::ssize(values));
    check_cuda(cudaMemcpy(buffer.data(), values.data(), buffer.bytes(), cudaMemcpyHostToDevice), "cudaMemcpy");
    return buffer;
  }

  static int64_t most_codes(const DeviceWeightPlan& plan) {
    int64_t most = 0;
    for_each_weight(plan, [&](const PlannedWeight& weight) {
      if (weight.format == WeightFormat::kBf16) return;
      for (const WeightPart& part : weight.parts) most = std::max(most, part.source.weight.num_elements());
    });
    return most;
  }

  const Bf16* bf16_table(const LinearWeight& source) {
    const bool widened = source.weight.dtype == DType::kE4M3;
    const auto key = std::pair(widened, source.in_features());  // dummy scales follow from the columns
    if (!bf16_.contains(key)) {
      bf16_.emplace(key, upload(widened ? dummy_widened(source) : dummy_bf16(source.in_features())));
    }
    return bf16_.at(key).data();
  }

  uint64_t seed_;
  cudaStream_t stream_;
  DeviceBuffer<uint8_t> codes_;
  DeviceBuffer<uint8_t> rows_;  // one matrix before it is packed
  std::map<std::pair<bool, int64_t>, DeviceBuffer<Bf16>> bf16_;
};

void check_free_memory(int64_t bytes) {
  size_t free = 0;
  size_t total = 0;
  check_cuda(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  check_as(ErrorKind::kOutOfMemory, static_cast<size_t>(bytes) <= free, "weights of ", gibibytes(bytes),
           ": expected at most the free GPU memory, ", gibibytes(static_cast<int64_t>(free)), " of ",
           gibibytes(static_cast<int64_t>(total)));
}

/// The plan with addresses.
class Assembly {
 public:
  Assembly(const DeviceWeightPlan& plan, uint8_t* memory, DeviceGemm& gemm)
      : memory_(memory), floats_(reinterpret_cast<const float*>(memory + plan.floats_offset)), gemm_(gemm) {}

  [[nodiscard]] const float* floats(const FloatSpan& span) const { return floats_ + span.begin; }

  [[nodiscard]] DeviceLinear linear(const PlannedWeight& weight) const {
    return {gemm_,
            {.format = weight.format,
             .n = weight.n,
             .k = weight.k,
             .data = memory_ + weight.offset,
             .scales = weight.scales.size > 0 ? floats(weight.scales) : nullptr,
             .input = weight.input,
             .static_scale = weight.static_scale,
             .gated = weight.gated}};
  }

  [[nodiscard]] DeviceLayerWeights layer(const PlannedLayer& layer) const {
    return {.qkv = linear(layer.qkv),
            .o = linear(layer.o),
            .gate_up = linear(layer.gate_up),
            .down = linear(layer.down),
            .input_norm = floats(layer.input_norm),
            .post_attention_norm = floats(layer.post_attention_norm),
            .pre_feedforward_norm = floats(layer.pre_feedforward_norm),
            .post_feedforward_norm = floats(layer.post_feedforward_norm),
            .q_norm = floats(layer.q_norm),
            .k_norm = floats(layer.k_norm),
            .k_scale = floats(layer.k_scale),
            .v_scale = floats(layer.v_scale),
            .layer_scalar = layer.layer_scalar};
  }

 private:
  uint8_t* memory_;
  const float* floats_;
  DeviceGemm& gemm_;
};

/// Device memory for the plan with norms and scales in it; matrices are still zero.
DeviceWeights allocate(const DeviceWeightPlan& plan) {
  check_free_memory(plan.bytes);
  int device = 0;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  DeviceWeights weights;
  weights.gemm = std::make_unique<DeviceGemm>(query_device(device));
  weights.gemm->order = plan.order;
  weights.memory = DeviceBuffer<uint8_t>(plan.bytes);
  weights.bytes = plan.bytes;
  check_cuda(cudaMemcpy(weights.memory.data() + plan.floats_offset, plan.floats.data(),
                        plan.floats.size() * sizeof(float), cudaMemcpyHostToDevice),
             "cudaMemcpy");
  const Assembly assembly(plan, weights.memory.data(), *weights.gemm);
  weights.embedding = reinterpret_cast<const Bf16*>(weights.memory.data() + plan.embedding.offset);
  weights.lm_head = assembly.linear(plan.lm_head.value_or(plan.embedding));
  weights.final_norm = assembly.floats(plan.final_norm);
  for (const PlannedLayer& layer : plan.layers) weights.layers.push_back(assembly.layer(layer));
  return weights;
}

void write_all(const DeviceWeightPlan& plan, WeightWriter& writer, const DeviceWeights& weights, cudaStream_t stream) {
  for_each_weight(plan,
                  [&](const PlannedWeight& weight) { writer.write(weight, weights.memory.data() + weight.offset); });
  check_cuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
}

void set_notes(DeviceWeights& weights, const ModelWeights& source, const DeviceWeightPlan& plan) {
  weights.notes = source.notes;
  weights.notes.insert(weights.notes.end(), plan.notes.begin(), plan.notes.end());
  weights.step_bytes = step_bytes(source);
}

}  // namespace

DeviceWeights load_device_weights(const std::filesystem::path& directory, const ModelConfig& config,
                                  KvScalePolicy kv_scales, cudaStream_t stream, packed_fp8::SumOrder order,
                                  int64_t slot_bytes) {
  Checkpoint checkpoint = open_checkpoint(directory);
  const auto files = checkpoint.files;
  const ModelWeights source = load_weights(std::move(checkpoint), config, kv_scales);
  const DeviceWeightPlan plan = plan_device_weights(source, config, order);
  DeviceWeights weights = allocate(plan);
  CheckpointWriter writer(files, plan, slot_bytes, stream);
  write_all(plan, writer, weights, stream);
  set_notes(weights, source, plan);
  return weights;
}

DeviceWeights dummy_device_weights(const ModelConfig& config, uint64_t seed, cudaStream_t stream,
                                   packed_fp8::SumOrder order) {
  const ModelWeights source = dummy_outline(config);
  const DeviceWeightPlan plan = plan_device_weights(source, config, order);
  DeviceWeights weights = allocate(plan);
  DummyWriter writer(plan, seed, stream);
  write_all(plan, writer, weights, stream);
  set_notes(weights, source, plan);
  return weights;
}

}  // namespace quaver
