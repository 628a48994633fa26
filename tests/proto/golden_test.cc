// The bytes of every message, against those in golden/. After an intended change of the wire:
// DTORCH_UPDATE_GOLDEN=1 proto_test "[golden]", and look at what git shows.
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/text_format.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "dtorch/v1/client.pb.h"
#include "dtorch/v1/metadata.pb.h"
#include "dtorch/v1/types.pb.h"
#include "dtorch/v1/worker.pb.h"
#include "tests/catch.h"

namespace dtorch {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

constexpr int kMaxDepth = 3;  // Value holds lists of Value
constexpr int kFirstCase = 0;

void fill(Message* message, int oneofCase, int depth);

/// Sets a field to a value made from its number; adds one when it is repeated. Signed ones are negative.
void setField(Message* message, const FieldDescriptor* field, int which, int depth) {
  const Reflection& to = *message->GetReflection();
  const int number = field->number() + which;
  const bool list = field->is_repeated();
  const bool zigzag = field->type() == FieldDescriptor::TYPE_SINT32 || field->type() == FieldDescriptor::TYPE_SINT64;
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return list ? to.AddInt32(message, field, zigzag ? -number : number)
                  : to.SetInt32(message, field, zigzag ? -number : number);
    case FieldDescriptor::CPPTYPE_INT64: {
      const std::int64_t value = (std::int64_t{number} << 33) * (zigzag ? -1 : 1);
      return list ? to.AddInt64(message, field, value) : to.SetInt64(message, field, value);
    }
    case FieldDescriptor::CPPTYPE_UINT32:
      return list ? to.AddUInt32(message, field, number + 300) : to.SetUInt32(message, field, number + 300);
    case FieldDescriptor::CPPTYPE_UINT64:
      return list ? to.AddUInt64(message, field, (std::uint64_t{1} << 63) + number)
                  : to.SetUInt64(message, field, (std::uint64_t{1} << 63) + number);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return list ? to.AddDouble(message, field, number + 0.5) : to.SetDouble(message, field, number + 0.5);
    case FieldDescriptor::CPPTYPE_FLOAT:
      return list ? to.AddFloat(message, field, number + 0.5f) : to.SetFloat(message, field, number + 0.5f);
    case FieldDescriptor::CPPTYPE_BOOL:
      return list ? to.AddBool(message, field, which == 0) : to.SetBool(message, field, true);
    case FieldDescriptor::CPPTYPE_ENUM: {
      const auto* value = field->enum_type()->value(1 + which % (field->enum_type()->value_count() - 1));
      return list ? to.AddEnum(message, field, value) : to.SetEnum(message, field, value);
    }
    case FieldDescriptor::CPPTYPE_STRING: {
      const std::string text = absl::StrCat(field->name(), which == 0 ? "" : "'");
      return list ? to.AddString(message, field, text) : to.SetString(message, field, text);
    }
    case FieldDescriptor::CPPTYPE_MESSAGE:
      if (depth < kMaxDepth)
        fill(list ? to.AddMessage(message, field) : to.MutableMessage(message, field), kFirstCase, depth + 1);
  }
}

/// Every field, with two values where it is repeated, and the given case of the oneof if there is one.
void fill(Message* message, int oneofCase, int depth) {
  const Descriptor* type = message->GetDescriptor();
  for (int i = 0; i < type->field_count(); ++i) {
    const FieldDescriptor* field = type->field(i);
    if (field->containing_oneof() != nullptr && field->index_in_oneof() != oneofCase) continue;
    setField(message, field, 0, depth);
    if (field->is_repeated()) setField(message, field, 1, depth);
  }
}

std::string serialize(const Message& message) {
  std::string bytes;
  google::protobuf::io::StringOutputStream stream(&bytes);
  google::protobuf::io::CodedOutputStream coded(&stream);
  coded.SetSerializationDeterministic(true);
  message.SerializeToCodedStream(&coded);
  coded.Trim();
  return bytes;
}

/// All cases of a message type as text: its fields, then its bytes in hexadecimal.
std::string golden(const Descriptor* type) {
  std::string text;
  const int cases = type->oneof_decl_count() == 0 ? 1 : type->oneof_decl(0)->field_count();
  for (int i = 0; i < cases; ++i) {
    const Message* prototype = google::protobuf::MessageFactory::generated_factory()->GetPrototype(type);
    const std::unique_ptr<Message> message(prototype->New());
    fill(message.get(), i, 0);
    const std::string bytes = serialize(*message);
    const std::unique_ptr<Message> parsed(prototype->New());
    CHECK(parsed->ParseFromString(bytes));
    CHECK(serialize(*parsed) == bytes);
    std::string fields;
    google::protobuf::TextFormat::PrintToString(*message, &fields);
    absl::StrAppend(&text, i == 0 ? "" : "\n", fields, "= ", absl::BytesToHexString(bytes), "\n");
  }
  return text;
}

std::vector<const Descriptor*> messages() {
  std::vector<const Descriptor*> types;
  for (const Descriptor* member : {v1::Value::descriptor(), v1::ClientMessage::descriptor(), v1::Frame::descriptor(),
                                   v1::MetadataRequest::descriptor()}) {
    for (int i = 0; i < member->file()->message_type_count(); ++i) types.push_back(member->file()->message_type(i));
  }
  return types;
}

TEST_CASE("Every message has the bytes that it always had", "[golden]") {
  const std::filesystem::path folder = DTORCH_GOLDEN_DIR;
  std::set<std::string> names;
  for (const Descriptor* type : messages()) {
    CAPTURE(type->full_name());
    CHECK(type->nested_type_count() == 0);
    CHECK(type->oneof_decl_count() <= 1);
    names.insert(absl::StrCat(type->name(), ".txt"));
    const std::filesystem::path path = folder / absl::StrCat(type->name(), ".txt");
    const std::string text = golden(type);
    if (std::getenv("DTORCH_UPDATE_GOLDEN") != nullptr) std::ofstream(path) << text;
    std::stringstream committed;
    committed << std::ifstream(path).rdbuf();
    CHECK(committed.str() == text);
  }
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    CHECK(names.count(entry.path().filename().string()) ==
          1);  // a message that is gone: its numbers are not used again
  }
}

}  // namespace
}  // namespace dtorch
