#include "daemon/placement/metadata_service.h"

#include <pthread.h>

#include <utility>

namespace dtorch {

MetadataService::MetadataService(std::vector<std::string> libraries,
                                 std::function<void(std::uint64_t, MetadataAnswer)> onAnswer)
    : onAnswer_(std::move(onAnswer)), process_(std::move(libraries)), thread_([this] { run(); }) {}

MetadataService::~MetadataService() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  asked_.notify_all();
  process_.cancel();
  thread_.join();
}

std::optional<MetadataAnswer> MetadataService::ask(MetadataQuestion question, std::chrono::milliseconds patience) {
  std::unique_lock lock(mutex_);
  const std::uint64_t number = question.number;
  questions_.push_back(std::move(question));
  asked_.notify_all();
  if (!answered_.wait_for(lock, patience, [&] { return answers_.contains(number); })) {
    late_.insert(number);
    return std::nullopt;
  }
  return std::move(answers_.extract(number).mapped());
}

void MetadataService::run() {
  ::pthread_setname_np(::pthread_self(), "metadata");
  process_.prepare();
  for (;;) {
    MetadataQuestion question;
    {
      std::unique_lock lock(mutex_);
      asked_.wait(lock, [this] { return stopping_ || !questions_.empty(); });
      if (stopping_) return;
      question = std::move(questions_.front());
      questions_.pop_front();
    }
    std::vector<const TensorMeta*> inputs;
    for (const TensorMeta& input : question.inputs) inputs.push_back(&input);
    MetadataAnswer answer = process_.infer(question.op, question.arguments, inputs);
    {
      const std::lock_guard lock(mutex_);
      if (late_.erase(question.number) == 0) {
        answers_.emplace(question.number, std::move(answer));
        answered_.notify_all();
        continue;
      }
    }
    onAnswer_(question.number, std::move(answer));
  }
}

}  // namespace dtorch
