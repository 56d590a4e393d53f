// Python's pickles as far as they hold plain data, without running what they ask for.
//
// A pickle is a program for a stack machine that may load and call classes; those instructions are
// refused. What is left builds numbers, strings and containers, which may be shared (the memo) or
// hold themselves. Values here are eight bytes that point into one tree; what a pickle shares
// stays shared, nothing is walked recursively, and memory is at most some forty times the file.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "allocator/record/format/byte_source.hpp"

namespace sluice::record {

enum class PickleKind : std::uint8_t {
  kNone,
  kBool,
  kInt,
  kFloat,
  kText,
  kBytes,
  kList,
  kTuple,
  kDict,
  kSet,
};
std::string_view pickle_kind_name(PickleKind kind);  // Python's word

// A value of a PickleTree, which gives it meaning.
class PickleValue {
 public:
  PickleValue() = default;  // None
  PickleKind kind() const;
  // Of a string or a container: its index in the tree; what is shared, and equal strings, have one.
  std::uint64_t id() const { return bits_ >> 4; }

 private:
  friend class PickleTree;
  // Low four bits: a PickleKind, or one of the two below. The rest: a bool, a number of 60 bits, or
  // an index.
  static constexpr std::uint64_t kWideInt = 14;  // an index of 64 bits of a signed number
  static constexpr std::uint64_t kWideUnsigned = 15;
  PickleValue(std::uint64_t tag, std::uint64_t payload) : bits_(payload << 4 | tag) {}
  std::uint64_t tag() const { return bits_ & 15; }
  std::uint64_t bits_ = 0;
};

class PickleTree {
 public:
  PickleValue root;

  // Of an int or a bool, where it fits.
  std::optional<std::int64_t> as_int64(PickleValue value) const;
  // Of an int or a bool; a negative one wraps around, as programs write addresses.
  std::optional<std::uint64_t> as_bits(PickleValue value) const;
  // Of a string or bytes (UTF-8 is not checked); empty for others.
  std::string_view text(PickleValue value) const;
  // Of a list, tuple or set; of a dict key, value, key, value, in the order of setting: where a key
  // comes twice, the last holds. Empty for others. Valid until the tree changes.
  std::span<const PickleValue> items(PickleValue value) const;
  // The value of the last such key, or nothing.
  std::optional<PickleValue> find(PickleValue dict, std::string_view key) const;
  // The id that a string of this content has, if there is one.
  std::optional<std::uint64_t> text_id(std::string_view text) const;

  // For whoever builds a tree.
  static PickleValue make_bool(bool value);
  PickleValue make_int(std::int64_t value);
  PickleValue make_unsigned(std::uint64_t value);
  static PickleValue make_float();  // no reader needs its value
  PickleValue make_text(PickleKind kind, std::string_view text);
  PickleValue make_container(PickleKind kind);
  void append(PickleValue container, std::span<const PickleValue> items);
  std::size_t container_count() const { return containers_.size(); }
  // Near enough, of heap.
  std::uint64_t held_bytes() const { return held_bytes_; }

 private:
  struct Container {
    PickleValue* items = nullptr;
    std::uint32_t count = 0;
    std::uint32_t capacity = 0;
  };
  PickleValue* allocate(std::size_t count);

  std::vector<Container> containers_;
  std::vector<std::unique_ptr<PickleValue[]>> blocks_;  // of items; containers point into them
  PickleValue* free_begin_ = nullptr;                   // in the last block
  PickleValue* free_end_ = nullptr;
  std::deque<std::string> texts_;
  std::unordered_map<std::string_view, std::uint64_t> text_ids_;  // views of texts_
  std::vector<std::uint64_t> wide_ints_;
  std::uint64_t held_bytes_ = 0;
};

struct PickleLimits {
  std::uint64_t max_file_bytes = std::uint64_t{4} << 30;
  std::uint64_t max_tree_bytes = std::uint64_t{24} << 30;
};

// Reads one pickle of protocol 0 to 5; what follows it is ignored. Integers beyond 64 bits become
// floats. InputError with the name and the byte where the pickle is cut short, breaks the rules of
// the machine, passes a limit, or asks for a class (or anything else that is not data).
PickleTree read_pickle(ByteSource& source, const PickleLimits& limits = {});
PickleTree read_pickle_file(const std::string& path, const PickleLimits& limits = {});

}  // namespace sluice::record
