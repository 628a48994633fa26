#include "worker/process_watcher.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <utility>

namespace dtorch {
namespace {

int openSignals() {
  // stderr is a pipe to the daemon: what is logged after the daemon's end must not end this process by itself.
  signal(SIGPIPE, SIG_IGN);
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  return signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
}

[[noreturn]] void endWithDaemon() {
  spdlog::error("the daemon is gone: ending");
  spdlog::default_logger()->flush();
  if (getpgrp() == getpid()) kill(0, SIGKILL);
  _exit(EXIT_FAILURE);
}

}  // namespace

ProcessWatcher::ProcessWatcher(int lifetimeFd)
    : lifetimeFd_(lifetimeFd), signalFd_(openSignals()), stopFd_(eventfd(0, EFD_CLOEXEC)) {}

ProcessWatcher::~ProcessWatcher() {
  stop();
  close(stopFd_);
  close(signalFd_);
}

void ProcessWatcher::start(std::function<void()> onTerminate) {
  onTerminate_ = std::move(onTerminate);
  thread_ = std::thread([this] { run(); });
}

void ProcessWatcher::stop() {
  eventfd_write(stopFd_, 1);
  if (thread_.joinable()) thread_.join();
}

void ProcessWatcher::run() {
  pthread_setname_np(pthread_self(), "watcher");
  // poll() ignores a negative descriptor.
  std::array<pollfd, 3> watched{{{lifetimeFd_, POLLIN, 0}, {signalFd_, POLLIN, 0}, {stopFd_, POLLIN, 0}}};
  for (;;) {
    if (poll(watched.data(), watched.size(), -1) < 0) continue;
    if ((watched[2].revents & POLLIN) != 0) return;
    if ((watched[0].revents & (POLLHUP | POLLERR | POLLNVAL)) != 0) endWithDaemon();
    if ((watched[0].revents & POLLIN) != 0) {
      char ignored = 0;
      if (read(lifetimeFd_, &ignored, 1) == 0) endWithDaemon();
    }
    signalfd_siginfo info{};
    if ((watched[1].revents & POLLIN) != 0 && read(signalFd_, &info, sizeof info) > 0) {
      spdlog::info("received signal {}", info.ssi_signo);
      onTerminate_();
    }
  }
}

}  // namespace dtorch
