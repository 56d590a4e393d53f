#include "allocator/record/format/pickle.hpp"

#include <algorithm>
#include <array>

#include "base/error.hpp"

namespace sluice::record {

std::string_view pickle_kind_name(PickleKind kind) {
  constexpr std::array<std::string_view, 10> names{"None",  "bool", "int",   "float", "str",
                                                   "bytes", "list", "tuple", "dict",  "set"};
  return names[static_cast<std::size_t>(kind)];
}

PickleKind PickleValue::kind() const {
  return tag() >= kWideInt ? PickleKind::kInt : static_cast<PickleKind>(tag());
}

namespace {

constexpr std::uint64_t tag_of(PickleKind kind) {
  return static_cast<std::uint64_t>(kind);
}

bool is_container(PickleValue value) {
  return value.kind() >= PickleKind::kList;
}

bool is_text(PickleValue value) {
  return value.kind() == PickleKind::kText || value.kind() == PickleKind::kBytes;
}

}  // namespace

std::optional<std::uint64_t> PickleTree::as_bits(PickleValue value) const {
  switch (value.tag()) {
    case tag_of(PickleKind::kBool):
      return value.id();
    case tag_of(PickleKind::kInt):
      return static_cast<std::uint64_t>(static_cast<std::int64_t>(value.bits_) >> 4);
    case PickleValue::kWideInt:
    case PickleValue::kWideUnsigned:
      return wide_ints_[value.id()];
    default:
      return std::nullopt;
  }
}

std::string_view PickleTree::text(PickleValue value) const {
  return is_text(value) ? std::string_view(texts_[value.id()]) : std::string_view();
}

std::span<const PickleValue> PickleTree::items(PickleValue value) const {
  if (!is_container(value)) return {};
  const Container& container = containers_[value.id()];
  return {container.items, container.count};
}

std::optional<std::uint64_t> PickleTree::text_id(std::string_view text) const {
  const auto found = text_ids_.find(text);
  if (found == text_ids_.end()) return std::nullopt;
  return found->second;
}

std::optional<PickleValue> PickleTree::find(PickleValue dict, std::string_view key) const {
  const auto id = text_id(key);
  if (!id || dict.kind() != PickleKind::kDict) return std::nullopt;
  const std::span<const PickleValue> entries = items(dict);
  for (std::size_t i = entries.size(); i >= 2; i -= 2) {
    const PickleValue candidate = entries[i - 2];
    if (candidate.kind() == PickleKind::kText && candidate.id() == *id) return entries[i - 1];
  }
  return std::nullopt;
}

PickleValue PickleTree::make_bool(bool value) {
  return {tag_of(PickleKind::kBool), static_cast<std::uint64_t>(value)};
}

PickleValue PickleTree::make_int(std::int64_t value) {
  constexpr std::int64_t kInlineEnd = std::int64_t{1} << 59;
  if (value >= -kInlineEnd && value < kInlineEnd) {
    return {tag_of(PickleKind::kInt), static_cast<std::uint64_t>(value)};
  }
  wide_ints_.push_back(static_cast<std::uint64_t>(value));
  held_bytes_ += sizeof(std::uint64_t);
  return {PickleValue::kWideInt, wide_ints_.size() - 1};
}

PickleValue PickleTree::make_unsigned(std::uint64_t value) {
  if (value <= INT64_MAX) return make_int(static_cast<std::int64_t>(value));
  wide_ints_.push_back(value);
  held_bytes_ += sizeof(std::uint64_t);
  return {PickleValue::kWideUnsigned, wide_ints_.size() - 1};
}

PickleValue PickleTree::make_float() {
  return {tag_of(PickleKind::kFloat), 0};
}

PickleValue PickleTree::make_text(PickleKind kind, std::string_view text) {
  const auto found = text_ids_.find(text);
  if (found != text_ids_.end()) return {tag_of(kind), found->second};
  texts_.emplace_back(text);
  text_ids_.emplace(texts_.back(), texts_.size() - 1);
  held_bytes_ += text.size() + 96;  // a string, a node of the table and its bucket
  return {tag_of(kind), texts_.size() - 1};
}

PickleValue PickleTree::make_container(PickleKind kind) {
  containers_.emplace_back();
  held_bytes_ += sizeof(Container);
  return {tag_of(kind), containers_.size() - 1};
}

PickleValue* PickleTree::allocate(std::size_t count) {
  constexpr std::size_t kBlockItems = 64 << 10;
  if (static_cast<std::size_t>(free_end_ - free_begin_) < count) {
    const std::size_t block_items = std::max(count, kBlockItems);
    blocks_.push_back(std::make_unique<PickleValue[]>(block_items));
    held_bytes_ += block_items * sizeof(PickleValue);
    free_begin_ = blocks_.back().get();
    free_end_ = free_begin_ + block_items;
  }
  PickleValue* const result = free_begin_;
  free_begin_ += count;
  return result;
}

void PickleTree::append(PickleValue value, std::span<const PickleValue> items) {
  Container& container = containers_[value.id()];
  const std::size_t count = container.count + items.size();
  if (count > UINT32_MAX) throw InputError("a container of a pickle has 2^32 items or more");
  if (count > container.capacity) {
    // A container that grows a second time will grow again. It gets twice the room, so that copies
    // add up to a small multiple of the items.
    const std::size_t capacity =
        container.count == 0 ? count : std::min<std::size_t>(2 * count, UINT32_MAX);
    PickleValue* const moved = allocate(capacity);
    std::copy_n(container.items, container.count, moved);
    container.items = moved;
    container.capacity = static_cast<std::uint32_t>(capacity);
  }
  std::copy(items.begin(), items.end(), container.items + container.count);
  container.count = static_cast<std::uint32_t>(count);
}

}  // namespace sluice::record
