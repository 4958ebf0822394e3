// Bulk tensor stores: they read shared memory as late as can be, when their thread waits for that.

#include "core/bf16.h"
#include "simt/cta.h"
#include "simt/device_memory.h"

namespace quaver::simt {
namespace {

constexpr int kPieceBytes = 16;
constexpr int kBankBytes = 128;  // of all banks: after so many the pieces are permuted in another way

void store(const Box& box) {
  BoxedMatrix matrix;
  std::memcpy(static_cast<void*>(&matrix), box.map.opaque.data(), sizeof(matrix));
  const int line_bytes = matrix.box_columns * static_cast<int>(sizeof(Bf16));
  const uint8_t* const lines = shared_pointer(box.source, matrix.box_rows * line_bytes);
  for (int line = 0; line < matrix.box_rows && box.row + line < matrix.rows; ++line) {
    for (int column = 0; column < matrix.box_columns && box.column + column < matrix.columns; ++column) {
      const int piece = column * static_cast<int>(sizeof(Bf16)) / kPieceBytes ^
                        line * line_bytes / kBankBytes % (line_bytes / kPieceBytes);
      const int in_piece = column * static_cast<int>(sizeof(Bf16)) % kPieceBytes;
      Bf16* const to = matrix.data + (box.row + line) * matrix.stride + box.column + column;
      expect(in_device_memory(to, sizeof(Bf16)), "tensor store to ", to, ": expected a place inside one allocation");
      std::memcpy(to, lines + line * line_bytes + piece * kPieceBytes + in_piece, sizeof(Bf16));
    }
  }
}

}  // namespace

void store_box(const Box& box) {
  expect(box.source % 1024 == 0, "tensor store from ", box.source, ": expected a multiple of 1,024");
  expect(box.column >= 0 && box.row >= 0, "tensor store to row ", box.row, ", column ", box.column,
         ": expected >= 0 here");
  running().boxes.push_back(box);
}

void commit_boxes() {
  for (Box& box : running().boxes) box.committed = true;
}

void wait_for_boxes() {
  std::vector<Box>& boxes = running().boxes;
  for (const Box& box : boxes) {
    if (box.committed) store(box);
  }
  std::erase_if(boxes, [](const Box& box) { return box.committed; });
}

}  // namespace quaver::simt
