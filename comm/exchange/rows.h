#pragma once
#include <cstddef>

namespace dtorch {

/// Equal runs of bytes at a fixed distance: how a slice of one dimension lies in a contiguous tensor. `Byte` is
/// std::byte or const std::byte.
template <typename Byte>
struct BasicRows {
  Byte* base = nullptr;
  std::size_t rows = 0;
  std::size_t rowBytes = 0;
  std::size_t pitch = 0;

  std::size_t bytes() const { return rows * rowBytes; }
  bool contiguous() const { return rows <= 1 || pitch == rowBytes; }
};
using Rows = BasicRows<std::byte>;
using ConstRows = BasicRows<const std::byte>;

inline Rows contiguousRows(std::byte* data, std::size_t bytes) { return {data, 1, bytes, bytes}; }
inline ConstRows contiguousRows(const std::byte* data, std::size_t bytes) { return {data, 1, bytes, bytes}; }

/// Copies bytes [offset, offset + n) of `from`, counted row after row, to `to`.
void readRows(const ConstRows& from, std::size_t offset, std::byte* to, std::size_t n);
/// The reverse of readRows.
void writeRows(const Rows& to, std::size_t offset, const std::byte* from, std::size_t n);
/// Copies all of `from` to `to`, which has as many bytes in rows of any length. Nothing to do when they are the same.
void copyRows(const ConstRows& from, const Rows& to);

}  // namespace dtorch
