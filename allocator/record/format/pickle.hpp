// Reads Python's pickles as far as they hold plain data. Nothing in a pickle is executed.
//
// A pickle is a program for a stack machine that may load and call classes; those instructions are
// refused. The others build numbers, strings and containers, which may be shared (by the memo) or
// contain themselves. A value here is eight bytes that point into one tree, so values that a pickle
// shares stay shared. Nothing is walked recursively, and memory is at most some forty times the
// file.
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
std::string_view pickle_kind_name(PickleKind kind);  // the name in Python

// A value, which only its PickleTree can interpret.
class PickleValue {
 public:
  PickleValue() = default;  // None
  PickleKind kind() const;
  // The index of a string or a container in the tree. Shared containers and equal strings have one
  // index.
  std::uint64_t id() const { return bits_ >> 4; }

 private:
  friend class PickleTree;
  // The low four bits are a PickleKind or one of the two below. The others are a bool, a number of
  // 60 bits, or an index.
  static constexpr std::uint64_t kWideInt = 14;       // index of a signed number of 64 bits
  static constexpr std::uint64_t kWideUnsigned = 15;  // index of an unsigned one
  PickleValue(std::uint64_t tag, std::uint64_t payload) : bits_(payload << 4 | tag) {}
  std::uint64_t tag() const { return bits_ & 15; }
  std::uint64_t bits_ = 0;
};

class PickleTree {
 public:
  PickleValue root;

  // The value of an int or a bool, as 64 bits. A negative value wraps around, because some programs
  // write addresses so.
  std::optional<std::uint64_t> as_bits(PickleValue value) const;
  // The content of a string or bytes (UTF-8 is not checked); empty for others.
  std::string_view text(PickleValue value) const;
  // The items of a list, tuple or set. For a dict: key, value, key, value, in the order of setting;
  // if a key comes twice, the last one holds. Empty for others. Valid until the tree changes.
  std::span<const PickleValue> items(PickleValue value) const;
  // The value of the last such key, if there is one.
  std::optional<PickleValue> find(PickleValue dict, std::string_view key) const;
  // The id of the string with this content, if the tree has one.
  std::optional<std::uint64_t> text_id(std::string_view text) const;
  // Calls `visit` with each different string.
  template <typename Visit>
  void visit_texts(Visit visit) const {
    for (const std::string& text : texts_) visit(text);
  }

  // For readers that build a tree. A float keeps no value: no snapshot needs one.
  static PickleValue make_bool(bool value);
  PickleValue make_int(std::int64_t value);
  PickleValue make_unsigned(std::uint64_t value);
  static PickleValue make_float();
  PickleValue make_text(PickleKind kind, std::string_view text);
  PickleValue make_container(PickleKind kind);
  void append(PickleValue container, std::span<const PickleValue> items);
  // An estimate of the heap that the tree uses.
  std::uint64_t held_bytes() const { return held_bytes_; }

 private:
  struct Container {
    PickleValue* items = nullptr;
    std::uint32_t count = 0;
    std::uint32_t capacity = 0;
  };
  PickleValue* allocate(std::size_t count);

  std::vector<Container> containers_;
  std::vector<std::unique_ptr<PickleValue[]>> blocks_;  // items, to which containers point
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

// Reads one pickle of protocol 0 to 5 and ignores the bytes after it. Integers beyond 64 bits
// become floats. Throws InputError, with the name and the byte, if the pickle is cut short, breaks
// the rules of the machine, exceeds a limit, or loads a class or anything else that is not data.
PickleTree read_pickle(ByteSource& source, const PickleLimits& limits = {});
PickleTree read_pickle_file(const std::string& path, const PickleLimits& limits = {});

}  // namespace sluice::record
