#pragma once
#include <cstdint>
#include <string>

#include "dtorch/v1/client.pb.h"

namespace dtorch {

// What tests that speak the wire themselves say, right as it is; they change it.

v1::Command meshOfTwo(std::uint32_t id);
/// Of float32[count], Replicate, on mesh 1; `bytes`: the first of its bytes.
v1::Command putOfFloats(std::uint64_t tensor, std::int64_t count, const std::string& bytes);
/// aten::mul.Scalar of one tensor.
v1::Command timesScalar(std::uint32_t id, double scalar);
v1::Command callOf(std::uint32_t id, std::uint64_t input, std::uint64_t output);
v1::Command getOf(std::uint64_t tensor, std::uint64_t future);
/// Everything that a session does, in one batch: three futures resolve.
v1::ClientMessage wholeSession();

}  // namespace dtorch
