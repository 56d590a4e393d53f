#include "engine/schedule/orders/order_csv.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <set>
#include <utility>

#include "base/error.hpp"

namespace sluice::schedule {
namespace {

// Bounds of untrusted files.
constexpr std::int32_t kMostStages = 65'536;
constexpr std::int32_t kMostMicrobatches = 1 << 20;
constexpr std::size_t kMostRows = 65'536;
constexpr std::size_t kMostCells = 1 << 24;

constexpr std::string_view kOverlap = "OVERLAP_F_B";

struct KindName {
  std::string_view name;
  ActionKind kind;
};
constexpr std::array<KindName, 15> kKinds{{{"F", ActionKind::kForward},
                                           {"B", ActionKind::kBackward},
                                           {"BW", ActionKind::kBackward},
                                           {"I", ActionKind::kBackwardInput},
                                           {"W", ActionKind::kBackwardWeight},
                                           {"SEND_F", ActionKind::kSendForward},
                                           {"RECV_F", ActionKind::kReceiveForward},
                                           {"SEND_B", ActionKind::kSendBackward},
                                           {"RECV_B", ActionKind::kReceiveBackward},
                                           {"UNSHARD", ActionKind::kUnshard},
                                           {"RESHARD", ActionKind::kReshard},
                                           {"REDUCE_GRAD", ActionKind::kReduceGrad},
                                           {"WAIT_REDUCE_GRAD", ActionKind::kWaitReduceGrad},
                                           {"WAIT_SEND_F", ActionKind::kWaitSendForward},
                                           {"WAIT_SEND_B", ActionKind::kWaitSendBackward}}};

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t\r");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r") + 1 - begin);
}

// Cuts the text in front of the first separator off it.
std::string_view cut(std::string_view& text, char separator) {
  const std::size_t end = std::min(text.find(separator), text.size());
  const std::string_view part = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return part;
}

class CsvReader {
 public:
  PipelineOrder read(std::string_view text) {
    while (!text.empty()) {
      row_ = order_.actions.size();
      if (row_ == kMostRows) fail("more rows than " + std::to_string(kMostRows));
      order_.actions.emplace_back();
      std::string_view row = cut(text, '\n');
      for (cell_ = 0; !row.empty(); ++cell_) read_cell(trimmed(cut(row, ',')));
      settle_dialect();
    }
    cell_ = 0;
    // Blank rows after the last rank.
    while (!order_.actions.empty() && order_.actions.back().empty()) order_.actions.pop_back();
    assign_stages();
    return std::move(order_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw InputError("pipeline CSV, row " + std::to_string(row_ + 1) + ", cell " +
                     std::to_string(cell_ + 1) + ": " + what);
  }
  std::vector<StageAction>& list() { return order_.actions.back(); }

  void read_cell(std::string_view cell) {
    if (cell.empty()) return;
    if (++cells_ > kMostCells) fail("more cells than " + std::to_string(kMostCells));
    if (cell.front() != '(') {
      list().push_back(read_action(cell));
      return;
    }
    const std::size_t end = cell.find(')');
    if (end == std::string_view::npos || cell.substr(end + 1) != kOverlap) {
      fail("a cell in parentheses ends with )" + std::string(kOverlap));
    }
    std::string_view parts = cell.substr(1, end - 1);
    const std::size_t first = list().size();
    while (!parts.empty()) list().push_back(read_action(trimmed(cut(parts, ';'))));
    if (list().size() < first + 2) fail("one action alone overlaps nothing");
    for (std::size_t i = first; i + 1 < list().size(); ++i) list()[i].with_next = true;
  }

  // A whole number from 0 to below `bound`; cuts it off the text.
  std::int32_t read_number(std::string_view& text, std::int32_t bound) const {
    std::int32_t value = -1;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || value < 0 || value >= bound) {
      fail("a stage or micro-batch is a whole number from 0 to " + std::to_string(bound - 1));
    }
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
    return value;
  }

  StageAction read_action(std::string_view text) {
    StageAction action;
    const std::string quoted = "'" + shown(text.substr(0, 40)) + "'";
    action.stage = read_number(text, kMostStages);
    const std::size_t digits = text.find_first_of("0123456789");
    const std::string_view name = text.substr(0, digits);
    const auto known = std::find_if(kKinds.begin(), kKinds.end(),
                                    [&](const KindName& kind) { return kind.name == name; });
    if (known == kKinds.end())
      fail(quoted + " is not an action, such as 0F0, 1SEND_F0 or 2UNSHARD");
    action.kind = known->kind;
    text.remove_prefix(name.size());
    const bool of_microbatch = has_microbatch(action.kind);
    if (text.empty() && !of_microbatch) return action;
    if (text.empty()) fail(quoted + " names no micro-batch");
    action.microbatch = read_number(text, kMostMicrobatches);
    if (!text.empty()) fail(quoted + " has characters after its micro-batch");
    if (of_microbatch) order_.microbatches = std::max(order_.microbatches, action.microbatch + 1);
    return action;
  }

  // Both dialects: see the header.
  void settle_dialect() {
    std::set<std::pair<std::int32_t, std::int32_t>> halved;
    for (const StageAction& action : list()) {
      if (action.kind == ActionKind::kBackwardWeight) {
        halved.insert({action.stage, action.microbatch});
      }
    }
    for (StageAction& action : list()) {
      if (action.kind == ActionKind::kBackward &&
          halved.contains({action.stage, action.microbatch})) {
        action.kind = ActionKind::kBackwardInput;
      }
    }
  }

  // A stage is of the rank whose row names it.
  void assign_stages() {
    std::vector<std::int32_t>& owners = order_.rank_of_stage;
    for (row_ = 0; row_ < order_.actions.size(); ++row_) {
      const auto rank = static_cast<std::int32_t>(row_);
      for (const StageAction& action : order_.actions[row_]) {
        const auto stage = static_cast<std::size_t>(action.stage);
        if (owners.size() <= stage) owners.resize(stage + 1, -1);
        if (owners[stage] >= 0 && owners[stage] != rank) {
          fail("stage " + std::to_string(stage) + " is in row " +
               std::to_string(owners[stage] + 1) + " too");
        }
        owners[stage] = rank;
      }
    }
    row_ = 0;
    const auto missing = std::find(owners.begin(), owners.end(), -1);
    if (missing != owners.end()) {
      fail("no row names stage " + std::to_string(missing - owners.begin()));
    }
    if (order_.microbatches == 0) fail("there is no pass");
  }

  PipelineOrder order_;
  std::size_t row_ = 0;
  std::size_t cell_ = 0;
  std::size_t cells_ = 0;
};

}  // namespace

PipelineOrder order_from_csv(std::string_view text) {
  return CsvReader().read(text);
}

std::string order_to_csv(const PipelineOrder& order) {
  std::string csv;
  for (const std::vector<StageAction>& list : order.actions) {
    bool within = false;  // an overlap
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (!within && i > 0) csv += ',';
      if (!within && list[i].with_next) csv += '(';
      csv += describe(list[i]);
      if (list[i].with_next) {
        csv += ';';
      } else if (within) {
        csv += ')';
        csv += kOverlap;
      }
      within = list[i].with_next;
    }
    csv += '\n';
  }
  return csv;
}

}  // namespace sluice::schedule
