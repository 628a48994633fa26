#include "daemon/supervisor/worker_output.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "proto/codec.h"
#include "spdlog/spdlog.h"

namespace dtorch {
namespace {

constexpr std::size_t kChunk = 4096;
constexpr std::size_t kPipeBytes = 64u << 10;  // Linux's default capacity: more was not there when the writer ended
constexpr std::size_t kMaxLine = 4096;
constexpr std::size_t kKeptLines = 20;

}  // namespace

bool WorkerOutput::read() {
  const ssize_t bytes = readChunk();
  return bytes > 0 || (bytes < 0 && (errno == EAGAIN || errno == EINTR));
}

void WorkerOutput::drain() {
  for (std::size_t taken = 0; taken < kPipeBytes;) {
    const ssize_t bytes = readChunk();
    if (bytes <= 0) break;
    taken += static_cast<std::size_t>(bytes);
  }
  if (!unfinished_.empty()) add("\n", 1);
}

std::vector<std::string> WorkerOutput::lastLines() const {
  const std::lock_guard lock(mutex_);
  return {lines_.begin(), lines_.end()};
}

ssize_t WorkerOutput::readChunk() {
  char buffer[kChunk];
  const ssize_t bytes = ::read(pipe_.get(), buffer, sizeof buffer);
  if (bytes > 0) add(buffer, static_cast<std::size_t>(bytes));
  return bytes;
}

void WorkerOutput::add(const char* data, std::size_t bytes) {
  for (const char* end = data + bytes; data < end;) {
    const std::size_t room = std::min<std::size_t>(end - data, kMaxLine - unfinished_.size());
    const void* newline = std::memchr(data, '\n', room);
    const std::size_t length = newline != nullptr ? static_cast<const char*>(newline) - data : room;
    unfinished_.append(data, length);
    data += length + (newline != nullptr ? 1 : 0);
    if (newline == nullptr && unfinished_.size() < kMaxLine) continue;
    std::string line = printable(unfinished_, kMaxLine);
    unfinished_.clear();
    spdlog::info("worker {}: {}", rank_, line);
    const std::lock_guard lock(mutex_);
    lines_.push_back(std::move(line));
    if (lines_.size() > kKeptLines) lines_.pop_front();
  }
}

}  // namespace dtorch
