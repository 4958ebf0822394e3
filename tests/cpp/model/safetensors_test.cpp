// safetensors files: right ones give the bytes back in place, wrong ones give one clear error each.
#include "model/safetensors.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "testing/expect_error.h"
#include "testing/safetensors_writer.h"
#include "testing/temp_dir.h"

namespace quaver {
namespace {

using testing::expect_error;
using testing::SafetensorsWriter;
using testing::TempDir;

std::span<const std::byte> as_bytes(const std::string& text) {
  return std::as_bytes(std::span(text));
}

std::vector<float> floats(const StoredTensor& tensor) {
  std::vector<float> values(tensor.data.size() / sizeof(float));
  if (!values.empty()) std::memcpy(values.data(), tensor.data.data(), tensor.data.size());
  return values;
}

TEST(Safetensors, ReadsTensorsInPlace) {
  SafetensorsWriter file;
  file.add_f32("b", {2, 3}, {1, 2, 3, 4, 5, 6});
  file.add_f32("a", {}, {7});
  file.add_e4m3("c", {3}, {1, 2, 3});
  file.add_f32("empty", {0, 4}, {});
  const std::string text = file.bytes();
  const TensorMap tensors = parse_safetensors(as_bytes(text), "x");
  ASSERT_EQ(tensors.size(), 4U);
  EXPECT_EQ(floats(tensors.at("b")), (std::vector<float>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(tensors.at("b").shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(floats(tensors.at("a")), std::vector<float>{7});
  EXPECT_TRUE(tensors.at("a").shape.empty());
  EXPECT_EQ(to_string(tensors.at("c")), "F8_E4M3 [3] in x");
  EXPECT_TRUE(tensors.at("empty").data.empty());
  const auto* begin = reinterpret_cast<const std::byte*>(text.data());
  EXPECT_GE(tensors.at("b").data.data(), begin);
  EXPECT_LE(tensors.at("b").data.data() + tensors.at("b").data.size(), begin + text.size());
}

TEST(Safetensors, AcceptsMetadataPaddingAndAnEmptyFile) {
  const std::string text = SafetensorsWriter::assemble(
      R"({"__metadata__": {"format": "pt"}, "x": {"dtype": "I64", "shape": [1], "data_offsets": [0, 8]}}     )",
      std::string(8, '\1'));
  EXPECT_EQ(parse_safetensors(as_bytes(text), "x").size(), 1U);
  EXPECT_TRUE(parse_safetensors(as_bytes(SafetensorsWriter::assemble("{}", "")), "x").empty());
}

/// A header with one tensor "x" of these fields, before `data_bytes` zero bytes.
std::string one_tensor(const std::string& fields, size_t data_bytes) {
  return SafetensorsWriter::assemble("{\"x\": {" + fields + "}}", std::string(data_bytes, '\0'));
}

TEST(Safetensors, CorruptFiles) {
  const std::string good = one_tensor(R"("dtype": "F32", "shape": [2], "data_offsets": [0, 8])", 8);
  ASSERT_EQ(parse_safetensors(as_bytes(good), "x").size(), 1U);
  std::string huge_length = good;
  std::memset(huge_length.data(), 0xFF, 8);
  std::string longer_header = good;
  longer_header[0] = static_cast<char>(longer_header[0] + 9);
  const std::string two = R"({"x": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]},)";
  const std::pair<std::string, const char*> cases[] = {
      {"", "of 0 bytes: expected at least 8"},
      {std::string("\1\0\0", 3), "of 3 bytes: expected at least 8"},
      {huge_length, "header length 18446744073709551615: expected at most"},
      {longer_header, "header length"},
      {good.substr(0, 20), "header length"},
      {good.substr(0, good.size() - 1), "ends at offset 8: expected at most 7"},
      {good + "x", "9 bytes of data: expected 8"},
      {SafetensorsWriter::assemble("[]", ""), "expected a JSON object"},
      {SafetensorsWriter::assemble(" {}", ""), "expected a JSON object"},
      {SafetensorsWriter::assemble("{", ""), "expected valid JSON"},
      {SafetensorsWriter::assemble(std::string("{}\0", 3), ""), "expected valid JSON"},
      {SafetensorsWriter::assemble("{\"\xff\": 1}", ""), "expected valid JSON"},
      {SafetensorsWriter::assemble("{\"x\": 1}", ""), "\"x\" 1: expected dtype, shape and data_offsets"},
      {SafetensorsWriter::assemble("{\"x\": " + std::string(70, '['), ""), "nested at most 64 deep"},
      {one_tensor(R"("shape": [2], "data_offsets": [0, 8])", 8), "dtype missing"},
      {one_tensor(R"("dtype": "F33", "shape": [2], "data_offsets": [0, 8])", 8), "dtype \"F33\""},
      {one_tensor(R"("dtype": 7, "shape": [2], "data_offsets": [0, 8])", 8), "dtype 7"},
      {one_tensor(R"("dtype": "F32", "data_offsets": [0, 8])", 8), "shape missing"},
      {one_tensor(R"("dtype": "F32", "shape": [-2], "data_offsets": [0, 8])", 8), "shape [-2]"},
      {one_tensor(R"("dtype": "F32", "shape": [2.0], "data_offsets": [0, 8])", 8), "shape [2.0]"},
      {one_tensor(R"("dtype": "F32", "shape": "2", "data_offsets": [0, 8])", 8), "shape \"2\""},
      {one_tensor(R"("dtype": "F32", "shape": [3], "data_offsets": [0, 8])", 8), "of 8 bytes: expected 12"},
      {one_tensor(R"("dtype": "F32", "shape": [4294967296, 4294967296], "data_offsets": [0, 0])", 0),
       "fewer than 2^56"},
      {one_tensor(R"("dtype": "F32", "shape": [18446744073709551615, 2], "data_offsets": [0, 8])", 8),
       "fewer than 2^56"},
      {one_tensor(R"("dtype": "F32", "shape": [1,1,1,1,1,1,1,1,2], "data_offsets": [0, 8])", 8), "expected at most 8"},
      {one_tensor(R"("dtype": "F4", "shape": [3], "data_offsets": [0, 2])", 2), "whole bytes"},
      {one_tensor(R"("dtype": "F32", "shape": [2])", 8), "data_offsets missing"},
      {one_tensor(R"("dtype": "F32", "shape": [2], "data_offsets": [8, 0])", 8), "expected [begin, end]"},
      {one_tensor(R"("dtype": "F32", "shape": [2], "data_offsets": [0, 8, 8])", 8), "expected [begin, end]"},
      {one_tensor(R"("dtype": "F32", "shape": [2], "data_offsets": [-8, 0])", 8), "data_offsets [-8,0]"},
      {one_tensor(R"("dtype": "F32", "shape": [2], "data_offsets": [18446744073709551608, 0])", 8),
       "expected [begin, end]"},
      {one_tensor(R"("dtype": "F32", "shape": [2], "data_offsets": [8, 16])", 16), "at offset 8: expected 0"},
      {SafetensorsWriter::assemble(two + R"("y": {"dtype": "U8", "shape": [4], "data_offsets": [2, 6]}})", "012345"),
       "\"y\" at offset 2: expected 4, no hole and no overlap"},
      {SafetensorsWriter::assemble(two + R"("y": {"dtype": "U8", "shape": [4], "data_offsets": [6, 10]}})",
                                   "0123456789"),
       "\"y\" at offset 6: expected 4, no hole and no overlap"},
      {SafetensorsWriter::assemble(two + R"("x": {"dtype": "U8", "shape": [4], "data_offsets": [4, 8]}})", "01234567"),
       "\"x\" given twice"},
  };
  for (const auto& [text, expected] : cases) {
    SCOPED_TRACE(expected);
    expect_error([&] { (void)parse_safetensors(as_bytes(text), "file.safetensors"); }, ErrorKind::kCorruptData,
                 {"file.safetensors", expected});
  }
}

TEST(Checkpoint, SingleFileOfAnyName) {
  const TempDir folder;
  SafetensorsWriter file;
  file.add_f32("x", {1}, {3});
  file.write(folder.path() / "weights.safetensors");
  EXPECT_EQ(floats(open_checkpoint(folder.path()).tensors.at("x")), std::vector<float>{3});
  file.write(folder.path() / "other.safetensors");
  expect_error([&] { (void)open_checkpoint(folder.path()); }, ErrorKind::kNotFound,
               {"other.safetensors, weights.safetensors", "expected model.safetensors.index.json"});
  file.write(folder.path() / "model.safetensors");
  const Checkpoint checkpoint = open_checkpoint(folder.path());
  ASSERT_EQ(checkpoint.notes.size(), 1U);
  EXPECT_NE(checkpoint.notes[0].find("other.safetensors, weights.safetensors"), std::string::npos);
}

/// Three shards a, b, c with one tensor each, and their index.
void write_shards(const TempDir& folder) {
  nlohmann::json index;
  for (const char* name : {"a", "b", "c"}) {
    SafetensorsWriter file;
    file.add_f32(name, {1}, {1});
    const std::string shard = std::string("model-") + name + ".safetensors";
    file.write(folder.path() / shard);
    index["weight_map"][name] = shard;
  }
  folder.write("model.safetensors.index.json", index.dump());
}

TEST(Checkpoint, B45ShardsComeFromTheIndex) {
  const TempDir folder;
  write_shards(folder);
  EXPECT_EQ(open_checkpoint(folder.path()).tensors.size(), 3U);
  SafetensorsWriter stray;  // an unindexed file is ignored, with a note
  stray.add_f32("a", {1}, {9});
  stray.write(folder.path() / "model.safetensors");
  const Checkpoint checkpoint = open_checkpoint(folder.path());
  EXPECT_EQ(floats(checkpoint.tensors.at("a")), std::vector<float>{1});
  ASSERT_EQ(checkpoint.notes.size(), 1U);
  EXPECT_NE(checkpoint.notes[0].find("model.safetensors"), std::string::npos);

  SafetensorsWriter twice;  // a tensor of shard a that shard b holds too: the index decides
  twice.add_f32("a", {1}, {9});
  twice.add_f32("b", {1}, {2});
  twice.write(folder.path() / "model-b.safetensors");
  EXPECT_EQ(floats(open_checkpoint(folder.path()).tensors.at("a")), std::vector<float>{1});
}

TEST(Checkpoint, B45MissingShardsAndTensorsAreNamed) {
  const TempDir folder;
  write_shards(folder);
  std::filesystem::remove(folder.path() / "model-b.safetensors");
  std::filesystem::remove(folder.path() / "model-c.safetensors");
  expect_error([&] { (void)open_checkpoint(folder.path()); }, ErrorKind::kNotFound,
               {"missing model-b.safetensors, model-c.safetensors"});
  write_shards(folder);
  SafetensorsWriter empty;
  empty.write(folder.path() / "model-b.safetensors");
  expect_error([&] { (void)open_checkpoint(folder.path()); }, ErrorKind::kNotFound,
               {"missing \"b\" in model-b.safetensors"});
}

TEST(Checkpoint, HostileIndex) {
  const TempDir folder;
  write_shards(folder);
  const std::pair<const char*, const char*> cases[] = {
      {R"({"weight_map": {"a": "../secret.safetensors"}})", "expected the name of a file beside the index"},
      {R"({"weight_map": {"a": "/etc/passwd"}})", "expected the name of a file beside the index"},
      {R"({"weight_map": {"a": ".."}})", "expected the name of a file beside the index"},
      {R"({"weight_map": {"a": ""}})", "expected the name of a file beside the index"},
      {R"({"weight_map": {"a": 7}})", "expected the name of a file beside the index"},
      {R"({"weight_map": []})", "weight_map []: expected a JSON object"},
      {R"({})", "expected a weight_map"},
      {"{", "expected valid JSON"},
  };
  for (const auto& [text, expected] : cases) {
    folder.write("model.safetensors.index.json", text);
    expect_error([&] { (void)open_checkpoint(folder.path()); }, std::nullopt, {expected});
  }
}

TEST(Checkpoint, UnreadableFiles) {
  const TempDir folder;
  expect_error([&] { (void)open_checkpoint(folder.path() / "absent"); }, ErrorKind::kNotFound, {"absent"});
  expect_error([&] { (void)open_checkpoint(folder.path()); }, ErrorKind::kNotFound, {"expected model.safetensors"});
  const auto path = folder.path() / "model.safetensors";
  folder.write("model.safetensors", "");
  expect_error([&] { (void)open_checkpoint(folder.path()); }, ErrorKind::kCorruptData, {"0 bytes"});
  std::filesystem::remove(path);
  std::filesystem::create_directory(path);
  expect_error([&] { (void)open_checkpoint(folder.path()); }, ErrorKind::kIo, {"expected a regular file"});
  std::filesystem::remove(path);
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  expect_error([&] { (void)open_checkpoint(folder.path()); }, ErrorKind::kIo, {"expected a regular file"});
  std::filesystem::remove(path);
  std::filesystem::create_symlink("nowhere", path);
  expect_error([&] { (void)open_checkpoint(folder.path()); }, ErrorKind::kNotFound, {"model.safetensors"});
}

}  // namespace
}  // namespace quaver
