#include "daemon/supervisor/worker_output.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "proto/codec.h"
#include "spdlog/spdlog.h"

namespace dtorch {
namespace {

constexpr std::size_t kPipeBytes = 64u << 10;  // Linux's default capacity: one read takes all that a dead worker left
constexpr std::size_t kMaxLine = 4096;
constexpr std::size_t kKeptLines = 20;

}  // namespace

bool WorkerOutput::read() {
  char buffer[kPipeBytes];
  const ssize_t bytes = ::read(pipe_.get(), buffer, sizeof buffer);
  if (bytes < 0) return errno == EAGAIN || errno == EINTR;
  add(buffer, static_cast<std::size_t>(bytes));
  return bytes > 0;
}

void WorkerOutput::finish() {
  if (!unfinished_.empty()) add("\n", 1);
}

void WorkerOutput::add(const char* data, std::size_t bytes) {
  for (const char* end = data + bytes; data < end;) {
    const std::size_t room = std::min<std::size_t>(end - data, kMaxLine - unfinished_.size());
    const void* newline = std::memchr(data, '\n', room);
    const std::size_t length = newline != nullptr ? static_cast<const char*>(newline) - data : room;
    unfinished_.append(data, length);
    data += length + (newline != nullptr ? 1 : 0);
    if (newline == nullptr && unfinished_.size() < kMaxLine) continue;
    lines_.push_back(printable(unfinished_, kMaxLine));
    unfinished_.clear();
    if (lines_.size() > kKeptLines) lines_.pop_front();
    spdlog::info("worker {}: {}", rank_, lines_.back());
  }
}

}  // namespace dtorch
