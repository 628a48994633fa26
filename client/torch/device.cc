// The device `dtorch` as PyTorch sees it: one device, without streams or events, on which programs run as written.
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "client/torch/generator.h"

namespace dtorch {
namespace {

constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;

class DeviceGuard final : public c10::impl::NoOpDeviceGuardImpl<kType> {
 public:
  c10::Device exchangeDevice(c10::Device /*device*/) const override { return only(); }
  c10::Device getDevice() const override { return only(); }
  c10::Stream getStream(c10::Device /*device*/) const noexcept override { return stream(); }
  c10::Stream getNewStream(c10::Device /*device*/, int /*priority*/) const override { return stream(); }
  c10::Stream exchangeStream(c10::Stream /*stream*/) const noexcept override { return stream(); }

 private:
  static c10::Device only() { return c10::Device(kType, 0); }
  static c10::Stream stream() { return c10::Stream(c10::Stream::DEFAULT, only()); }
};

class Hooks final : public at::PrivateUse1HooksInterface {
 public:
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex /*index*/) const override { return defaultGenerator(); }
  at::Generator getNewGenerator(c10::DeviceIndex /*index*/) const override {
    return at::make_generator<RemoteGenerator>(false);
  }
  bool hasPrimaryContext(c10::DeviceIndex /*index*/) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(c10::DeviceIndex /*index*/) const override {}
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex /*index*/) const override { return 0; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex /*index*/) const override { return 0; }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, DeviceGuard);

const bool hooksRegistered = [] {
  static Hooks hooks;
  at::RegisterPrivateUse1HooksInterface(&hooks);
  return true;
}();

}  // namespace
}  // namespace dtorch
