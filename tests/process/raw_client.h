#pragma once
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "dtorch/v1/client.pb.h"
#include "proto/version.h"
#include "tests/process/daemon_fixture.h"

namespace dtorch {

/// A client that speaks the wire itself, to say what the library would not. Everything ends within 30 s.
class RawClient {
 public:
  explicit RawClient(const DaemonFixture& daemon);
  ~RawClient();
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  /// False: the stream has ended.
  bool sendBytes(const std::string& bytes);
  bool send(const v1::ClientMessage& message) { return sendBytes(message.SerializeAsString()); }
  bool send(const v1::Command& command);
  void hello(std::uint32_t protocol = kProtocolVersion);
  /// Says that nothing more will be sent.
  void doneSending();
  bool read(v1::DaemonMessage* message);
  /// Reads on to the answer with this number.
  bool readResult(std::uint64_t future, v1::FutureResult* result);
  /// Reads to the end of the stream.
  grpc::Status end();

 private:
  void* tag() { return this; }
  bool next();
  std::shared_ptr<grpc::Channel> channel_;
  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  grpc::CompletionQueue queue_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
};

}  // namespace dtorch
