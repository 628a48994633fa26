#include "comm/exchange/tensor_board.h"

#include <algorithm>
#include <cstring>

#include "shm/futex.h"

namespace dtorch {

struct TensorBoard::Layout {
  std::atomic<std::uint32_t> changes;
  std::atomic<std::uint32_t> sleepers;
  std::atomic<std::uint32_t> barriers;
  std::atomic<std::uint32_t> left;
  std::array<Entry, kEntries> entries;
};

std::size_t TensorBoard::bytes() { return sizeof(Layout); }

TensorBoard::TensorBoard(std::byte* memory) : layout_(reinterpret_cast<Layout*>(memory)) {}

TensorBoard::Entry* TensorBoard::set(const std::string& key, const Description& what, std::uint32_t readers,
                                     std::uint64_t generation) const {
  const auto entry = std::find_if(layout_->entries.begin(), layout_->entries.end(),
                                  [](const Entry& e) { return e.isSet.load(std::memory_order_relaxed) == 0; });
  if (entry == layout_->entries.end()) return nullptr;
  entry->key.fill('\0');
  std::memcpy(entry->key.data(), key.data(), std::min(key.size(), kMaxKey - 1));
  entry->what = what;
  entry->readers = readers;
  entry->finished.store(0, std::memory_order_relaxed);
  entry->refused.store(0, std::memory_order_relaxed);
  entry->generation.store(generation, std::memory_order_release);
  entry->isSet.store(1, std::memory_order_release);
  return &*entry;
}

void TensorBoard::free(Entry& entry) { entry.isSet.store(0, std::memory_order_release); }

TensorBoard::Entry* TensorBoard::find(const std::string& key, std::uint64_t after) const {
  for (Entry& entry : layout_->entries) {
    // The key of an entry that this reader has finished may be written at the moment: its generation is looked at
    // first.
    if (entry.isSet.load(std::memory_order_acquire) != 0 && entry.generation.load(std::memory_order_acquire) > after &&
        key == entry.key.data()) {
      return &entry;
    }
  }
  return nullptr;
}

bool TensorBoard::finish(Entry& entry, std::uint64_t generation, const std::string& refusal) {
  if (entry.generation.load(std::memory_order_relaxed) != generation) return false;
  if (!refusal.empty() && entry.refused.exchange(1, std::memory_order_relaxed) == 0) {
    entry.reason.fill('\0');
    std::memcpy(entry.reason.data(), refusal.data(), std::min(refusal.size(), kMaxReason - 1));
  }
  const std::uint32_t readers = entry.readers;  // once all have finished, the entry may be another's
  return entry.finished.fetch_add(1, std::memory_order_acq_rel) < readers;
}

std::uint32_t TensorBoard::changes() const { return layout_->changes.load(std::memory_order_seq_cst); }

void TensorBoard::ring() const {
  // seq_cst on both sides of both words: either the sleeper sees the change or this sees the sleeper.
  layout_->changes.fetch_add(1, std::memory_order_seq_cst);
  if (layout_->sleepers.load(std::memory_order_seq_cst) != 0) futexWakeAll(layout_->changes);
}

void TensorBoard::awaitChange(std::uint32_t seen, Deadline deadline) const {
  layout_->sleepers.fetch_add(1, std::memory_order_seq_cst);
  if (changes() == seen) {
    const auto left = deadline - std::chrono::steady_clock::now();
    futexWait(layout_->changes, seen, std::chrono::duration_cast<std::chrono::nanoseconds>(left));
  }
  layout_->sleepers.fetch_sub(1, std::memory_order_relaxed);
}

std::atomic<std::uint32_t>& TensorBoard::barriers() const { return layout_->barriers; }
std::atomic<std::uint32_t>& TensorBoard::left() const { return layout_->left; }

}  // namespace dtorch
