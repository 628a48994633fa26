#include "daemon/placement/metadata_service.h"

#include <pthread.h>

#include <utility>

namespace dtorch {

MetadataService::MetadataService(std::vector<std::string> libraries,
                                 std::function<void(std::uint64_t, MetadataAnswer)> onAnswer)
    : onAnswer_(std::move(onAnswer)), process_(std::move(libraries)), thread_([this] { run(); }) {}

MetadataService::~MetadataService() {
  {
    const absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  process_.cancel();
  thread_.join();
}

std::optional<MetadataAnswer> MetadataService::ask(MetadataQuestion question, absl::Duration patience) {
  const absl::MutexLock lock(&mutex_);
  const std::uint64_t number = question.number;
  questions_.push_back(std::move(question));
  const auto answered = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return answers_.contains(number); };
  if (!mutex_.AwaitWithTimeout(absl::Condition(&answered), patience)) {
    late_.insert(number);
    return std::nullopt;
  }
  return std::move(answers_.extract(number).mapped());
}

void MetadataService::run() {
  ::pthread_setname_np(::pthread_self(), "metadata");
  process_.prepare();
  const auto due = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return stopping_ || !questions_.empty(); };
  for (;;) {
    MetadataQuestion question;
    {
      const absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(&due));
      if (stopping_) return;
      question = std::move(questions_.front());
      questions_.pop_front();
    }
    std::vector<const TensorMeta*> inputs;
    for (const TensorMeta& input : question.inputs) inputs.push_back(&input);
    MetadataAnswer answer = process_.infer(question.op, question.arguments, inputs);
    {
      const absl::MutexLock lock(&mutex_);
      if (late_.erase(question.number) == 0) {
        answers_.emplace(question.number, std::move(answer));
        continue;
      }
    }
    onAnswer_(question.number, std::move(answer));
  }
}

}  // namespace dtorch
