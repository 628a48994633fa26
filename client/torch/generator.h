#pragma once
#include <ATen/core/Generator.h>
#include <c10/core/GeneratorImpl.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include "client/cpp/session.h"
#include "client/torch/call_site.h"

namespace dtorch {

/// A torch.Generator("dtorch"): a random state of the session's on the workers or, of a generator of the program's own,
/// one that takes its place while an operator draws. The state lies on the workers; nothing waits for it but
/// get_state(). Thread: safe under mutex(), as PyTorch's are.
class RemoteGenerator final : public c10::GeneratorImpl {
 public:
  /// `isDefault`: the session's own state.
  explicit RemoteGenerator(bool isDefault);

  void set_current_seed(std::uint64_t seed) override;
  void set_offset(std::uint64_t offset) override;
  std::uint64_t get_offset() const override;
  std::uint64_t current_seed() const override { return seed_; }
  std::uint64_t seed() override;
  void set_state(const c10::TensorImpl& state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;
  static c10::DeviceType device_type() { return c10::DeviceType::PrivateUse1; }

  bool isDefault() const { return isDefault_; }
  /// Puts this state in the place of the session's, until end(). Throws where its session is not the current one any
  /// more.
  void begin(Site site);
  void end() noexcept;

 private:
  RemoteGenerator* clone_impl() const override;

  const bool isDefault_;
  std::uint64_t seed_ = c10::default_rng_seed_val;
  void keep(const Tensor& state);

  std::optional<Tensor> state_;         // none: what the seed gives
  std::weak_ptr<Session> session_;      // whose the state is
  std::optional<Tensor> set_;           // the session's own, meanwhile
  Site site_ = std::source_location();  // that began
};

/// Of the session's random state.
const at::Generator& defaultGenerator();

/// The session's random state, on the workers.
Tensor rngState();
void setRngState(const Tensor& state);

/// While it lives, this thread alone draws random numbers, from `generator`; null: the default one. It must not wait
/// for Python's lock meanwhile, which another thread that waits to draw may hold: `site` is a callSite() of before.
class DrawsFrom {
 public:
  DrawsFrom(RemoteGenerator* generator, Site site);
  ~DrawsFrom();
  DrawsFrom(const DrawsFrom&) = delete;
  DrawsFrom& operator=(const DrawsFrom&) = delete;

 private:
  const std::unique_lock<std::mutex> lock_;
  RemoteGenerator* const generator_;
};

}  // namespace dtorch
