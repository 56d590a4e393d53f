// 700 lines because writing and reading of each object stand in one file.
//
// Schedules as JSON, for people to read and for tests to damage. Defaults are left out. Unknown
// keys, unknown words, and indices without a target are refused.
#include <algorithm>
#include <cmath>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/json_text.hpp"
#include "engine/schedule/schedule.hpp"

namespace sluice::schedule {
namespace {

using nlohmann::json;

constexpr std::string_view kFormat = "sluice.schedule";
constexpr std::int64_t kVersion = 1;
// Bounds that keep sums in 64 bits and vectors by rank small.
constexpr std::int64_t kMostRanks = 1 << 20;
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 56;

constexpr std::array<std::string_view, 10> kDTypeNames{"F64", "F32", "BF16", "F16", "I64",
                                                       "I32", "I16", "U16",  "U8",  "BLOCK8"};

constexpr std::array<std::string_view, 6> kCutKinds{"sum",    "max",      "scatter",
                                                    "gather", "exchange", "ring"};
constexpr std::array<std::string_view, 3> kCutRanks{"tensor", "context", "sharers"};
constexpr std::array<std::string_view, 7> kCutValues{
    "output", "saved", "context", "workspace", "gradient", "tied_gradient", "loss"};

// The names of an enumeration in order of its values.
template <typename Enum, std::size_t kCount, typename NameOf>
std::array<std::string_view, kCount> names_of(NameOf name_of) {
  std::array<std::string_view, kCount> names;
  for (std::size_t i = 0; i < kCount; ++i) names[i] = name_of(static_cast<Enum>(i));
  return names;
}
const auto kOpNames = [] { return names_of<Op, kOpCount>(op_name); };
const auto kLaneNames = [] { return names_of<Lane, kLaneCount>(lane_name); };
const auto kRoleNames = [] { return names_of<BufferRole, kBufferRoleCount>(role_name); };
const auto kSavedForNames = [] { return names_of<SavedFor, kSavedForCount>(saved_for_name); };
const auto kMadeByNames = [] { return names_of<MadeBy, kMadeByCount>(made_by_name); };
const auto kGuardNames = [] { return names_of<Guard, kGuardCount>(guard_name); };
const auto kTierNames = [] { return names_of<Tier, kTierCount>(tier_name); };
const auto kCategoryNames = [] { return names_of<Category, kCategoryCount>(category_name); };
const auto kDimensionNames = [] { return names_of<Dimension, kDimensionCount>(dimension_name); };
const auto kKindNames = [] { return names_of<StateKind, kStateKindCount + 1>(state_kind_name); };

[[noreturn]] void refuse(const std::string& where, const std::string& what) {
  throw InputError("schedule: " + where + ": " + what);
}

// ---- writing

json uses_to_json(const Uses& uses) {
  json list = json::array();
  for (const Use& use : uses) {
    if (use.peer >= 0) {
      list.push_back(json::array({use.buffer, use.offset_bytes, use.bytes, use.peer}));
    } else if (use.bytes == 0 && use.offset_bytes == 0) {
      list.push_back(json::array({use.buffer}));
    } else {
      list.push_back(json::array({use.buffer, use.offset_bytes, use.bytes}));
    }
  }
  return list;
}

template <typename T>
void put(json& object, const char* key, T value, T fallback) {
  if (value != fallback) object[key] = value;
}

json buffer_to_json(const Buffer& buffer) {
  json object;
  object["role"] = role_name(buffer.role);
  object["tier"] = tier_name(buffer.tier);
  object["category"] = category_name(buffer.category);
  object["dtype"] = kDTypeNames[static_cast<std::size_t>(buffer.dtype)];
  object["bytes"] = buffer.bytes;
  put(object, "rank", buffer.rank, 0);
  put(object, "unit", buffer.unit, -1);
  put(object, "microbatch", buffer.microbatch, -1);
  if (buffer.used_by != SavedFor::kBoth) object["used_by"] = saved_for_name(buffer.used_by);
  if (buffer.kind != StateKind::kNone) object["kind"] = state_kind_name(buffer.kind);
  put(object, "chunk", buffer.chunk, -1);
  put(object, "first_elem", buffer.first_elem, std::uint64_t{0});
  put(object, "elems", buffer.elems, std::uint64_t{0});
  put(object, "version", buffer.version, 0);
  put(object, "persistent", buffer.persistent, false);
  put(object, "window", buffer.window, false);
  put(object, "per_tensor", buffer.per_tensor, false);
  put(object, "versions", buffer.versions, 1);
  put(object, "log_copy", buffer.log_copy, false);
  put(object, "shadow_of", buffer.shadow_of, kNoId);
  put(object, "ring", buffer.ring, -1);
  put(object, "offset_bytes", buffer.offset_bytes, std::uint64_t{0});
  if (!buffer.slots.empty()) object["slots"] = buffer.slots;
  return object;
}

json instruction_to_json(const Instruction& instruction) {
  json object;
  object["op"] = op_name(instruction.op);
  object["lane"] = lane_name(instruction.lane);
  put(object, "rank", instruction.rank, 0);
  put(object, "unit", instruction.unit, -1);
  put(object, "layer", instruction.layer, -1);
  put(object, "microbatch", instruction.microbatch, -1);
  put(object, "update", instruction.update, 0);
  put(object, "segment_begin", instruction.segments.begin, SegmentRange().begin);
  put(object, "segment_end", instruction.segments.end, SegmentRange().end);
  if (instruction.reduction != CutKind::kSum) {
    object["cut"] = kCutKinds[static_cast<std::size_t>(instruction.reduction)];
  }
  if (instruction.reduced != DType::kU8) object["reduced"] = dtype_name(instruction.reduced);
  put(object, "chunk", instruction.chunk, -1);
  if (!instruction.reads.empty()) object["reads"] = uses_to_json(instruction.reads);
  if (!instruction.writes.empty()) object["writes"] = uses_to_json(instruction.writes);
  if (!instruction.deps.empty()) object["deps"] = instruction.deps;
  if (instruction.guard != Guard::kNone) object["guard"] = guard_name(instruction.guard);
  put(object, "peer", instruction.peer, -1);
  put(object, "group", instruction.group, -1);
  put(object, "tag", instruction.tag, -1);
  put(object, "bytes", instruction.bytes, std::uint64_t{0});
  put(object, "cost_s", instruction.cost_s, 0.0);
  return object;
}

json saved_parts_to_json(const std::vector<std::vector<SavedPart>>& units) {
  json list = json::array();
  for (const std::vector<SavedPart>& parts : units) {
    json unit = json::array();
    for (const SavedPart& part : parts) {
      json object;
      object["name"] = part.name;
      object["bytes"] = part.bytes;
      if (part.used_by != SavedFor::kBoth) object["used_by"] = saved_for_name(part.used_by);
      if (part.made_by != MadeBy::kWholePass) object["made_by"] = made_by_name(part.made_by);
      put(object, "made_from", part.made_from, PartMask{0});
      put(object, "made_with", part.made_with, PartMask{0});
      unit.push_back(std::move(object));
    }
    list.push_back(std::move(unit));
  }
  return list;
}

// By unit, pass and segment.
json segments_to_json(const std::vector<UnitSegments>& units) {
  const auto pass_of = [](const PassSegments& segments) {
    json pass = json::array();
    for (const std::vector<Cut>& cuts : segments) {
      json list = json::array();
      for (const Cut& cut : cuts) {
        json object;
        object["cut"] = kCutKinds[static_cast<std::size_t>(cut.kind)];
        object["value"] = kCutValues[static_cast<std::size_t>(cut.value)];
        object["dtype"] = dtype_name(cut.dtype);
        put(object, "begin_bytes", cut.begin_bytes, std::uint64_t{0});
        put(object, "elems", cut.elems, std::uint64_t{0});
        put(object, "parts", cut.parts, PartMask{0});
        if (cut.among != CutRanks::kTensor) {
          object["ranks"] = kCutRanks[static_cast<std::size_t>(cut.among)];
        }
        list.push_back(std::move(object));
      }
      pass.push_back(std::move(list));
    }
    return pass;
  };
  json list = json::array();
  for (const UnitSegments& unit : units) {
    list.push_back({{"forward", pass_of(unit.forward)},
                    {"loss", pass_of(unit.loss)},
                    {"backward_input", pass_of(unit.backward_input)},
                    {"backward_weight", pass_of(unit.backward_weight)}});
  }
  return list;
}

json residencies_to_json(const std::vector<Residency>& residencies) {
  json list = json::array();
  for (const Residency& residency : residencies) {
    list.push_back({{"kind", state_kind_name(residency.kind)},
                    {"unit", residency.unit},
                    {"chunk", residency.chunk},
                    {"home", residency.home},
                    {"version", residency.version}});
  }
  return list;
}

json groups_to_json(const std::vector<Group>& groups) {
  json list = json::array();
  for (const Group& group : groups) {
    list.push_back({{"ranks", group.ranks}, {"dimension", dimension_name(group.dimension)}});
  }
  return list;
}

// ---- reading

// Reads one object. `known`: " key key key ", every key that it may have.
class Fields {
 public:
  Fields(const json& object, std::string where, std::string_view known)
      : object_(object), where_(std::move(where)) {
    if (!object.is_object()) refuse(where_, "must be an object");
    for (const auto& [key, value] : object.items()) {
      if (known.find(" " + key + " ") == std::string_view::npos) {
        refuse(where_, "has an unknown key \"" + key.substr(0, 40) + "\"");
      }
    }
  }

  const json* find(const char* key) {
    const auto at = object_.find(key);
    return at == object_.end() ? nullptr : &*at;
  }
  const json& need(const char* key) {
    const json* value = find(key);
    if (value == nullptr) refuse(where_, "\"" + std::string(key) + "\" is missing");
    return *value;
  }

  std::int32_t integer(const char* key, std::int32_t fallback, std::int64_t least,
                       std::int64_t most) {
    const json* value = find(key);
    return value == nullptr ? fallback : static_cast<std::int32_t>(whole(*value, key, least, most));
  }
  std::int32_t integer(const char* key, std::int32_t fallback) {
    return integer(key, fallback, -1, std::numeric_limits<std::int32_t>::max());
  }
  std::uint64_t bytes(const char* key, std::uint64_t most = kMostBytes) {
    const json* value = find(key);
    return value == nullptr ? 0 : natural(*value, key, most);
  }
  bool flag(const char* key) {
    const json* value = find(key);
    if (value == nullptr) return false;
    if (!value->is_boolean()) refuse_key(key, "must be true or false");
    return value->get<bool>();
  }
  double seconds(const char* key) {
    const json* value = find(key);
    if (value == nullptr) return 0.0;
    if (!value->is_number() || !(value->get<double>() >= 0) ||
        !std::isfinite(value->get<double>())) {
      refuse_key(key, "must be a number of seconds, 0 or more");
    }
    return value->get<double>();
  }
  template <typename Enum, typename Names>
  Enum word(const char* key, const Names& names, const json* value) {
    if (!value->is_string()) refuse_key(key, "must be a word");
    const auto& text = value->get_ref<const std::string&>();
    for (std::size_t i = 0; i < names.size(); ++i) {
      if (names[i] == text) return static_cast<Enum>(i);
    }
    refuse_key(key, "knows no \"" + text.substr(0, 40) + "\"");
  }
  template <typename Enum, typename Names>
  Enum word(const char* key, const Names& names) {
    return word<Enum>(key, names, &need(key));
  }
  const json& list(const char* key) {
    static const json empty = json::array();
    const json* value = find(key);
    if (value == nullptr) return empty;
    if (!value->is_array()) refuse_key(key, "must be a list");
    return *value;
  }
  std::vector<std::uint32_t> indices(const char* key, std::uint64_t count) {
    std::vector<std::uint32_t> values;
    for (const json& item : list(key)) {
      values.push_back(static_cast<std::uint32_t>(index(item, key, count)));
    }
    return values;
  }
  // A natural number below `count`.
  std::uint64_t index(const json& value, const char* key, std::uint64_t count) {
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() >= count) {
      refuse_key(key, "must be below " + std::to_string(count));
    }
    return value.get<std::uint64_t>();
  }
  std::uint64_t natural(const json& value, const char* key, std::uint64_t most) {
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() > most) {
      refuse_key(key, "must be a whole number from 0 to " + std::to_string(most));
    }
    return value.get<std::uint64_t>();
  }

 private:
  std::int64_t whole(const json& value, const char* key, std::int64_t least, std::int64_t most) {
    const bool fits = value.is_number_integer() &&
                      (!value.is_number_unsigned() ||
                       value.get<std::uint64_t>() <= static_cast<std::uint64_t>(most));
    if (!fits || value.get<std::int64_t>() < least || value.get<std::int64_t>() > most) {
      refuse_key(key, "must be a whole number from " + std::to_string(least) + " to " +
                          std::to_string(most));
    }
    return value.get<std::int64_t>();
  }
  [[noreturn]] void refuse_key(const char* key, const std::string& what) {
    refuse(where_, "\"" + std::string(key) + "\" " + what);
  }

  const json& object_;
  std::string where_;
};

Buffer buffer_from_json(const json& object, BufferId id, const Schedule& schedule) {
  Fields fields(
      object, "buffer " + std::to_string(id),
      " role tier category dtype bytes rank unit microbatch used_by kind chunk first_elem elems "
      "version persistent window per_tensor versions log_copy shadow_of ring offset_bytes slots ");
  Buffer buffer;
  buffer.id = id;
  buffer.role = fields.word<BufferRole>("role", kRoleNames());
  buffer.tier = fields.word<Tier>("tier", kTierNames());
  buffer.category = fields.word<Category>("category", kCategoryNames());
  buffer.dtype = fields.word<DType>("dtype", kDTypeNames);
  buffer.bytes = fields.natural(fields.need("bytes"), "bytes", kMostBytes);
  buffer.rank = fields.integer("rank", 0, 0, schedule.ranks - 1);
  buffer.unit = fields.integer("unit", -1);
  buffer.microbatch = fields.integer("microbatch", -1);
  if (const json* used_by = fields.find("used_by")) {
    buffer.used_by = fields.word<SavedFor>("used_by", kSavedForNames(), used_by);
  }
  if (const json* kind = fields.find("kind")) {
    buffer.kind = fields.word<StateKind>("kind", kKindNames(), kind);
  }
  buffer.chunk = fields.integer("chunk", -1);
  buffer.first_elem = fields.bytes("first_elem");
  buffer.elems = fields.bytes("elems");
  buffer.version = fields.integer("version", 0);
  buffer.persistent = fields.flag("persistent");
  buffer.window = fields.flag("window");
  buffer.per_tensor = fields.flag("per_tensor");
  buffer.versions = fields.integer("versions", 1, 1, 2);
  buffer.log_copy = fields.flag("log_copy");
  if (const json* shadow = fields.find("shadow_of")) {
    buffer.shadow_of = static_cast<BufferId>(fields.index(*shadow, "shadow_of", id));
  }
  buffer.ring = fields.integer("ring", -1);
  buffer.offset_bytes = fields.bytes("offset_bytes");
  buffer.slots = fields.indices("slots", schedule.slot_count);
  return buffer;
}

Uses uses_from_json(Fields& fields, const char* key, const Schedule& schedule,
                    const std::string& where) {
  Uses uses;
  for (const json& item : fields.list(key)) {
    if (!item.is_array() || item.empty() || item.size() == 2 || item.size() > 4) {
      refuse(where, "\"" + std::string(key) +
                        "\" holds [buffer], [buffer, offset, bytes] or "
                        "[buffer, offset, bytes, peer]");
    }
    Use use;
    use.buffer = static_cast<BufferId>(fields.index(item[0], key, schedule.buffers.size()));
    if (item.size() >= 3) {
      const std::uint64_t bytes = schedule.buffers[use.buffer].bytes;
      use.offset_bytes = fields.natural(item[1], key, bytes);
      use.bytes = fields.natural(item[2], key, bytes - use.offset_bytes);
    }
    if (item.size() == 4) {
      const auto world = static_cast<std::uint64_t>(world_ranks_of(schedule));
      use.peer = static_cast<std::int32_t>(fields.index(item[3], key, world));
    }
    uses.push_back(use);
  }
  return uses;
}

Instruction instruction_from_json(const json& object, InstructionId id, const Schedule& schedule) {
  const std::string where = "instruction " + std::to_string(id);
  Fields fields(object, where,
                " op lane rank unit layer microbatch update segment_begin segment_end cut reduced "
                "chunk reads writes deps guard peer "
                "group tag bytes "
                "cost_s ");
  Instruction instruction;
  instruction.id = id;
  instruction.op = fields.word<Op>("op", kOpNames());
  instruction.lane = fields.word<Lane>("lane", kLaneNames());
  instruction.rank = fields.integer("rank", 0, 0, schedule.ranks - 1);
  instruction.unit = fields.integer("unit", -1);
  instruction.layer = fields.integer("layer", -1);
  instruction.microbatch = fields.integer("microbatch", -1);
  instruction.update = fields.integer("update", 0, 0, 1 << 20);
  SegmentRange& segments = instruction.segments;
  segments.begin = fields.integer("segment_begin", segments.begin, 0, segments.end);
  segments.end = fields.integer("segment_end", segments.end, segments.begin, segments.end);
  if (const json* cut = fields.find("cut")) {
    instruction.reduction = fields.word<CutKind>("cut", kCutKinds, cut);
  }
  if (const json* reduced = fields.find("reduced")) {
    instruction.reduced = fields.word<DType>("reduced", kDTypeNames, reduced);
  }
  instruction.chunk = fields.integer("chunk", -1);
  instruction.reads = uses_from_json(fields, "reads", schedule, where);
  instruction.writes = uses_from_json(fields, "writes", schedule, where);
  instruction.deps = fields.indices("deps", id);
  if (const json* guard = fields.find("guard")) {
    instruction.guard = fields.word<Guard>("guard", kGuardNames(), guard);
  }
  instruction.peer = fields.integer("peer", -1, -1, world_ranks_of(schedule) - 1);
  instruction.group = fields.integer("group", -1, -1, std::ssize(schedule.groups) - 1);
  instruction.tag = fields.integer("tag", -1);
  instruction.bytes = fields.bytes("bytes");
  instruction.cost_s = fields.seconds("cost_s");
  return instruction;
}

std::vector<Residency> residencies_from_json(Fields& fields, const char* key,
                                             const Schedule& schedule) {
  std::vector<Residency> residencies;
  for (const json& item : fields.list(key)) {
    Fields entry(item, std::string(key) + " " + std::to_string(residencies.size()),
                 " kind unit chunk home version ");
    Residency residency;
    residency.kind = entry.word<StateKind>("kind", kKindNames());
    residency.unit = entry.integer("unit", -1);
    residency.chunk = entry.integer("chunk", -1);
    residency.home =
        static_cast<BufferId>(entry.index(entry.need("home"), "home", schedule.buffers.size()));
    residency.version = entry.integer("version", 0);
    residencies.push_back(residency);
  }
  return residencies;
}

SavedPart saved_part_from_json(const json& object, const std::string& where) {
  Fields fields(object, where, " name bytes used_by made_by made_from made_with ");
  SavedPart part;
  const json& name = fields.need("name");
  if (!name.is_string()) refuse(where, "\"name\" must be a word");
  part.name = name.get<std::string>();
  part.bytes = fields.bytes("bytes");
  if (const json* used_by = fields.find("used_by")) {
    part.used_by = fields.word<SavedFor>("used_by", kSavedForNames(), used_by);
  }
  if (const json* made_by = fields.find("made_by")) {
    part.made_by = fields.word<MadeBy>("made_by", kMadeByNames(), made_by);
  }
  constexpr auto kMostMask = std::numeric_limits<PartMask>::max();
  part.made_from = static_cast<PartMask>(fields.bytes("made_from", kMostMask));
  part.made_with = static_cast<PartMask>(fields.bytes("made_with", kMostMask));
  return part;
}

PassSegments pass_segments_from_json(Fields& unit, const char* key, const std::string& where) {
  constexpr std::size_t kMostSegments = 1 << 12, kMostCuts = 64;
  PassSegments segments;
  for (const json& list : unit.list(key)) {
    if (!list.is_array() || list.size() > kMostCuts || segments.size() == kMostSegments) {
      refuse(where, "\"" + std::string(key) + "\" must be a list of lists of cuts");
    }
    segments.emplace_back();
    for (const json& item : list) {
      Fields fields(item, where, " cut value dtype begin_bytes elems parts ranks ");
      Cut cut;
      cut.kind = fields.word<CutKind>("cut", kCutKinds);
      cut.value = fields.word<CutValue>("value", kCutValues);
      cut.dtype = fields.word<DType>("dtype", kDTypeNames);
      cut.begin_bytes = fields.bytes("begin_bytes");
      cut.elems = fields.bytes("elems", kMostBytes / sizeof(double));
      cut.parts =
          static_cast<PartMask>(fields.bytes("parts", std::numeric_limits<PartMask>::max()));
      if (const json* ranks = fields.find("ranks")) {
        cut.among = fields.word<CutRanks>("ranks", kCutRanks, ranks);
      }
      segments.back().push_back(cut);
    }
  }
  if (segments.empty()) refuse(where, "\"" + std::string(key) + "\" must have a segment");
  return segments;
}

std::vector<UnitSegments> segments_from_json(Fields& fields) {
  std::vector<UnitSegments> units;
  for (const json& item : fields.list("segments")) {
    const std::string where = "segments " + std::to_string(units.size());
    Fields unit(item, where, " forward loss backward_input backward_weight ");
    units.push_back({pass_segments_from_json(unit, "forward", where),
                     pass_segments_from_json(unit, "loss", where),
                     pass_segments_from_json(unit, "backward_input", where),
                     pass_segments_from_json(unit, "backward_weight", where)});
  }
  return units;
}

// By unit, pairs of an element and a sum, both ascending.
std::vector<std::vector<TensorBorder>> tensor_borders_from_json(Fields& fields) {
  std::vector<std::vector<TensorBorder>> units;
  for (const json& item : fields.list("tensor_borders")) {
    const std::string where = "tensor_borders " + std::to_string(units.size());
    if (!item.is_array()) refuse(where, "must be a list of pairs of numbers");
    std::vector<TensorBorder> borders;
    for (const json& pair : item) {
      if (!pair.is_array() || pair.size() != 2) refuse(where, "must be a list of pairs of numbers");
      const TensorBorder border{fields.natural(pair[0], "tensor_borders", kMostBytes),
                                fields.natural(pair[1], "tensor_borders", kMostBytes)};
      if (!borders.empty() &&
          (border.elem <= borders.back().elem || border.sum < borders.back().sum)) {
        refuse(where, "must ascend");
      }
      borders.push_back(border);
    }
    units.push_back(std::move(borders));
  }
  return units;
}

json tensor_borders_to_json(const std::vector<std::vector<TensorBorder>>& units) {
  json list = json::array();
  for (const std::vector<TensorBorder>& borders : units) {
    json unit = json::array();
    for (const TensorBorder& border : borders) unit.push_back({border.elem, border.sum});
    list.push_back(std::move(unit));
  }
  return list;
}

std::vector<std::vector<SavedPart>> saved_parts_from_json(Fields& fields) {
  std::vector<std::vector<SavedPart>> units;
  for (const json& item : fields.list("saved_parts")) {
    const std::string where = "saved_parts " + std::to_string(units.size());
    if (!item.is_array() || item.size() > kMostParts) {
      refuse(where, "must be a list of at most " + std::to_string(kMostParts) + " parts");
    }
    std::vector<SavedPart> parts;
    for (const json& part : item) parts.push_back(saved_part_from_json(part, where));
    units.push_back(std::move(parts));
  }
  return units;
}

// Each unit has a version for every micro-batch, of those that the updates make.
DelayedUpdates delayed_updates_from_json(const json& object) {
  Fields fields(object, "delayed", " updates microbatches versions ");
  constexpr std::int32_t kMost = 1 << 20;
  DelayedUpdates delayed;
  delayed.updates = fields.integer("updates", 1, 1, kMost);
  delayed.microbatches = fields.integer("microbatches", 1, 1, kMost);
  const auto count =
      static_cast<std::size_t>(delayed.updates) * static_cast<std::size_t>(delayed.microbatches);
  for (const json& item : fields.list("versions")) {
    if (!item.is_array() || item.size() != count) {
      refuse("delayed", "each list of \"versions\" must have a number for every micro-batch");
    }
    std::vector<std::int32_t> versions;
    for (const json& version : item) {
      versions.push_back(static_cast<std::int32_t>(
          fields.natural(version, "versions", static_cast<std::uint64_t>(delayed.updates) - 1)));
    }
    delayed.versions.push_back(std::move(versions));
  }
  return delayed;
}

// Members are ranks of the world, ascending, at least one.
std::vector<Group> groups_from_json(Fields& fields, const Schedule& schedule) {
  std::vector<Group> groups;
  for (const json& item : fields.list("groups")) {
    const std::string where = "group " + std::to_string(groups.size());
    Fields object(item, where, " ranks dimension ");
    Group group;
    group.dimension = object.word<Dimension>("dimension", kDimensionNames());
    for (const std::uint32_t rank :
         object.indices("ranks", static_cast<std::uint64_t>(world_ranks_of(schedule)))) {
      group.ranks.push_back(static_cast<std::int32_t>(rank));
    }
    const bool ascending = std::adjacent_find(group.ranks.begin(), group.ranks.end(),
                                              std::greater_equal<>()) == group.ranks.end();
    if (group.ranks.empty() || !ascending) refuse(where, "\"ranks\" must be ascending ranks");
    groups.push_back(std::move(group));
  }
  return groups;
}

// The list, after a check that its indices fit an id.
const json& bounded_list(Fields& fields, const char* key) {
  const json& list = fields.list(key);
  if (list.size() >= kNoId) refuse(key, "has too many entries");
  return list;
}

Schedule read_schedule(const json& document) {
  Fields fields(document, "document",
                " format version ranks first_rank world_ranks groups buffers instructions entry "
                "exit commit saved_parts segments folds_in_ring delayed tensor_borders "
                "peak_bytes slot_count "
                "slot_bytes device_arena_bytes pinned_arena_bytes shares_device ");
  const json& format = fields.need("format");
  if (!format.is_string() || format.get_ref<const std::string&>() != kFormat) {
    refuse("document", "\"format\" must be \"" + std::string(kFormat) + "\"");
  }
  if (fields.integer("version", 0, 0, 1 << 20) != kVersion) {
    refuse("document", "\"version\" must be " + std::to_string(kVersion));
  }
  Schedule schedule;
  schedule.ranks = fields.integer("ranks", 1, 1, kMostRanks);
  schedule.first_rank = fields.integer("first_rank", 0, 0, kMostRanks - schedule.ranks);
  schedule.world_ranks = fields.integer("world_ranks", 0, 0, kMostRanks);
  if (schedule.first_rank + schedule.ranks > world_ranks_of(schedule)) {
    refuse("document", "\"first_rank\" and \"ranks\" must lie within \"world_ranks\"");
  }
  schedule.groups = groups_from_json(fields, schedule);
  schedule.slot_count = static_cast<std::uint32_t>(fields.bytes("slot_count", 1u << 24));
  schedule.slot_bytes = fields.bytes("slot_bytes", std::uint64_t{1} << 38);
  schedule.device_arena_bytes = fields.bytes("device_arena_bytes");
  schedule.pinned_arena_bytes = fields.bytes("pinned_arena_bytes");
  schedule.shares_device = fields.flag("shares_device");
  const json& peaks = fields.need("peak_bytes");
  if (!peaks.is_array() || peaks.size() != kTierCount) {
    refuse("document", "\"peak_bytes\" must be a list of three numbers");
  }
  for (std::size_t tier = 0; tier < kTierCount; ++tier) {
    schedule.peak_bytes[tier] = fields.natural(peaks[tier], "peak_bytes", kMostBytes * 128);
  }
  for (const json& item : bounded_list(fields, "buffers")) {
    schedule.buffers.push_back(
        buffer_from_json(item, static_cast<BufferId>(schedule.buffers.size()), schedule));
  }
  for (const json& item : bounded_list(fields, "instructions")) {
    schedule.instructions.push_back(instruction_from_json(
        item, static_cast<InstructionId>(schedule.instructions.size()), schedule));
  }
  schedule.entry = residencies_from_json(fields, "entry", schedule);
  schedule.exit = residencies_from_json(fields, "exit", schedule);
  if (fields.find("commit") != nullptr) {
    schedule.commit = residencies_from_json(fields, "commit", schedule);
  }
  schedule.saved_parts = saved_parts_from_json(fields);
  schedule.segments = segments_from_json(fields);
  schedule.folds_in_ring = fields.flag("folds_in_ring");
  if (const json* delayed = fields.find("delayed")) {
    schedule.delayed = delayed_updates_from_json(*delayed);
  }
  schedule.tensor_borders = tensor_borders_from_json(fields);
  return schedule;
}

}  // namespace

std::string schedule_to_json(const Schedule& schedule) {
  json document;
  document["format"] = kFormat;
  document["version"] = kVersion;
  document["ranks"] = schedule.ranks;
  put(document, "first_rank", schedule.first_rank, 0);
  put(document, "world_ranks", schedule.world_ranks, 0);
  if (!schedule.groups.empty()) document["groups"] = groups_to_json(schedule.groups);
  document["slot_count"] = schedule.slot_count;
  document["slot_bytes"] = schedule.slot_bytes;
  document["device_arena_bytes"] = schedule.device_arena_bytes;
  document["pinned_arena_bytes"] = schedule.pinned_arena_bytes;
  if (schedule.shares_device) document["shares_device"] = true;
  document["peak_bytes"] = schedule.peak_bytes;
  document["buffers"] = json::array();
  for (const Buffer& buffer : schedule.buffers) {
    document["buffers"].push_back(buffer_to_json(buffer));
  }
  document["instructions"] = json::array();
  for (const Instruction& instruction : schedule.instructions) {
    document["instructions"].push_back(instruction_to_json(instruction));
  }
  document["entry"] = residencies_to_json(schedule.entry);
  document["exit"] = residencies_to_json(schedule.exit);
  if (!schedule.commit.empty()) document["commit"] = residencies_to_json(schedule.commit);
  if (!schedule.saved_parts.empty()) {
    document["saved_parts"] = saved_parts_to_json(schedule.saved_parts);
  }
  if (!schedule.segments.empty()) document["segments"] = segments_to_json(schedule.segments);
  if (schedule.folds_in_ring) document["folds_in_ring"] = true;
  if (schedule.delayed.any()) {
    document["delayed"] = {{"updates", schedule.delayed.updates},
                           {"microbatches", schedule.delayed.microbatches},
                           {"versions", schedule.delayed.versions}};
  }
  if (!schedule.tensor_borders.empty()) {
    document["tensor_borders"] = tensor_borders_to_json(schedule.tensor_borders);
  }
  return json_text(document);
}

Schedule schedule_from_json(std::string_view text) {
  json document;
  try {
    document = parse_json(text);
  } catch (const json::parse_error& error) {
    throw InputError("schedule: not JSON at byte " + std::to_string(error.byte));
  } catch (const json::exception&) {
    throw InputError("schedule: holds a number out of range");
  }
  return read_schedule(document);
}

}  // namespace sluice::schedule
