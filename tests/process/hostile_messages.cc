#include "tests/process/hostile_messages.h"

namespace dtorch {

v1::Command meshOfTwo(std::uint32_t id) {
  v1::Command command;
  command.mutable_define_mesh()->set_id(id);
  v1::DeviceMesh* mesh = command.mutable_define_mesh()->mutable_mesh();
  mesh->set_device_type(v1::DEVICE_TYPE_CPU);
  mesh->add_shape(2);
  mesh->add_ranks(0);
  mesh->add_ranks(1);
  return command;
}

v1::Command putOfFloats(std::uint64_t tensor, std::int64_t count, const std::string& bytes) {
  v1::Command command;
  v1::Put* put = command.mutable_put();
  put->set_tensor(tensor);
  put->set_mesh(1);
  put->mutable_meta()->set_dtype(v1::DTYPE_FLOAT32);
  put->mutable_meta()->add_shape(count);
  put->add_placements()->set_replicate(true);
  put->set_inline_bytes(bytes);
  put->set_total_bytes(4 * static_cast<std::uint64_t>(count));
  return command;
}

v1::Command timesScalar(std::uint32_t id, double scalar) {
  v1::Command command;
  v1::TemplateDefinition* definition = command.mutable_define_template();
  definition->set_id(id);
  definition->set_name("aten::mul.Scalar");
  definition->mutable_arguments()->add_positional()->set_tensor(0);
  definition->mutable_arguments()->add_positional()->set_real(scalar);
  definition->set_outputs(1);
  return command;
}

v1::Command callOf(std::uint32_t id, std::uint64_t input, std::uint64_t output) {
  v1::Command command;
  command.set_template_id(id);
  command.add_inputs(input);
  command.set_first_output(output);
  return command;
}

v1::Command getOf(std::uint64_t tensor, std::uint64_t future) {
  v1::Command command;
  command.mutable_get()->set_tensor(tensor);
  command.mutable_get()->set_future(future);
  return command;
}

v1::ClientMessage wholeSession() {
  v1::ClientMessage message;
  const auto add = [&](const v1::Command& command) { *message.mutable_batch()->add_commands() = command; };
  add(meshOfTwo(1));
  add(putOfFloats(1, 4, std::string(16, '\x3f')));
  add(timesScalar(1, 2.0));
  v1::Command site;
  site.mutable_define_site()->set_id(1);
  site.mutable_define_site()->set_file("file.py");
  site.mutable_define_site()->set_line(7);
  add(site);
  add(callOf(1, 1, 2));
  v1::Command redistribute;
  redistribute.mutable_redistribute()->set_tensor(2);
  redistribute.mutable_redistribute()->set_output(3);
  redistribute.mutable_redistribute()->add_placements()->set_shard(0);
  add(redistribute);
  add(getOf(3, 1));
  v1::Command release;
  release.mutable_release()->add_tensors(2);
  add(release);
  v1::Command describe;
  describe.mutable_describe()->set_tensor(3);
  describe.mutable_describe()->set_future(2);
  add(describe);
  v1::Command synchronize;
  synchronize.mutable_synchronize()->set_future(3);
  add(synchronize);
  return message;
}

}  // namespace dtorch
