#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "dtorch/v1/client.pb.h"

namespace dtorch {

/// Rows as text, columns aligned: left, but right where the header starts with '>'. Columns are two blanks apart.
std::string formatTable(const std::vector<std::string>& header, const std::vector<std::vector<std::string>>& rows);

/// "starting", "healthy", "degraded", "draining", "stopping".
absl::string_view name(v1::Health health);

// What dtorchctl shows of a status, for people.
std::string formatSummary(const v1::StatusReply& status);
std::string formatWorkers(const v1::StatusReply& status);
std::string formatSessions(const v1::StatusReply& status);
std::string formatStuck(const v1::StatusReply& status);      // what each worker runs, and whom it waits for
std::string formatStacks(const v1::StatusReply& status);     // of the workers' threads, like ones together
std::string formatOperators(const v1::StatusReply& status);  // the oldest in flight

// The same for programs; field names are those of proto/dtorch/v1/client.proto.
nlohmann::json summaryJson(const v1::StatusReply& status);
nlohmann::json workersJson(const v1::StatusReply& status);
nlohmann::json sessionsJson(const v1::StatusReply& status);
nlohmann::json stuckJson(const v1::StatusReply& status);
nlohmann::json stacksJson(const v1::StatusReply& status);
nlohmann::json operatorsJson(const v1::StatusReply& status);

}  // namespace dtorch
