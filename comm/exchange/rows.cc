#include "comm/exchange/rows.h"

#include <algorithm>

#include "shm/bulk_copy.h"

namespace dtorch {
namespace {

/// Calls `piece(address, done, length)` for every run of bytes [offset, offset + n) that lies in one row.
template <typename Byte, typename Piece>
void forEachRun(const BasicRows<Byte>& rows, std::size_t offset, std::size_t n, Piece piece) {
  if (n == 0) return;
  if (rows.contiguous()) return piece(rows.base + offset, std::size_t{0}, n);
  std::size_t row = offset / rows.rowBytes;
  std::size_t column = offset % rows.rowBytes;
  for (std::size_t done = 0; done < n; ++row, column = 0) {
    const std::size_t length = std::min(n - done, rows.rowBytes - column);
    piece(rows.base + row * rows.pitch + column, done, length);
    done += length;
  }
}

}  // namespace

void readRows(const ConstRows& from, std::size_t offset, std::byte* to, std::size_t n) {
  forEachRun(from, offset, n,
             [to](const std::byte* run, std::size_t done, std::size_t length) { bulkCopy(to + done, run, length); });
}

void writeRows(const Rows& to, std::size_t offset, const std::byte* from, std::size_t n) {
  forEachRun(to, offset, n,
             [from](std::byte* run, std::size_t done, std::size_t length) { bulkCopy(run, from + done, length); });
}

void copyRows(const ConstRows& from, const Rows& to) {
  if (from.base == to.base || from.bytes() == 0) return;
  forEachRun(from, 0, from.bytes(),
             [&to](const std::byte* run, std::size_t done, std::size_t length) { writeRows(to, done, run, length); });
}

}  // namespace dtorch
