#pragma once
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <variant>

#include "client/cpp/session.h"
#include "client/cpp/tensor_checker.h"

namespace dtorch::binding {

/// What a resolved future has to say, in the form that dtorch_result gives out.
struct Result {
  HostTensor value;
  TensorMeta meta;
  std::string placements;
  std::string json;
};

struct AnyFuture {
  std::variant<Future<HostTensor>, Future<TensorInfo>, Future<void>, Future<std::string>> future;
  std::mutex mutex;
  std::optional<Result> result;
};

}  // namespace dtorch::binding

/// What a pointer of binding.h points to.
struct dtorch_object {
  std::variant<std::shared_ptr<dtorch::Session>, dtorch::Mesh, dtorch::Tensor,
               std::unique_ptr<dtorch::binding::AnyFuture>, std::unique_ptr<dtorch::TensorChecker>>
      value;
};
