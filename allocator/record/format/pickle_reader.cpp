#include <algorithm>
#include <bit>
#include <cctype>
#include <charconv>
#include <cstring>
#include <utility>

#include "allocator/record/format/pickle.hpp"
#include "base/error.hpp"

namespace sluice::record {
namespace {

constexpr std::size_t kMaxNumberChars = 4096;

// The stack machine of Python's pickle module; Lib/pickletools.py describes each instruction.
//
// Each instruction pushes a value, or takes values above the last mark and puts them into a
// container below it. The memo stores values by number, so that later instructions can push them
// again. The machine runs in one loop without recursion. Instructions that would load or call a
// class are refused, and so is any index outside the stack, the marks or the memo.
class PickleReader {
 public:
  PickleReader(ByteSource& source, const PickleLimits& limits) : source_(source), limits_(limits) {}

  PickleTree run() {
    for (std::uint64_t step = 0;; ++step) {
      instruction_ = source_.offset();
      const int opcode = source_.next();
      if (opcode < 0) refuse("ends before its STOP: must be a whole pickle");
      if (opcode == '.') break;
      if (!memo(opcode) && !number(opcode) && !container(opcode) && !text(opcode) &&
          !stack(opcode)) {
        refuse_opcode(opcode);
      }
      if (step % 4096 == 0) check_memory();
    }
    check_memory();
    tree_.root = pop();
    return std::move(tree_);
  }

 private:
  [[noreturn]] void refuse(const std::string& reason) const {
    throw InputError("'" + source_.name() + "' byte " + std::to_string(instruction_) + ": " +
                     reason);
  }

  [[noreturn]] void refuse_opcode(int opcode) const {
    constexpr std::string_view kClassOpcodes = "cRbioPQ\x81\x82\x83\x84\x92\x93";
    if (kClassOpcodes.find(static_cast<char>(opcode)) != std::string_view::npos) {
      refuse("asks for a class or a call, which is never run: must be a pickle of plain data");
    }
    refuse("instruction " + std::to_string(opcode) + " is unknown: must be a pickle, protocol 0-5");
  }

  void check_memory() const {
    const std::uint64_t held = tree_.held_bytes() + memo_.capacity() * sizeof(memo_[0]) +
                               values_.capacity() * sizeof(PickleValue) +
                               marks_.capacity() * sizeof(std::size_t);
    if (held > limits_.max_tree_bytes) {
      refuse("takes above " + std::to_string(limits_.max_tree_bytes) +
             " bytes of memory, the most that is given to one pickle");
    }
  }

  // Reading the program.

  template <typename T>
  T little_endian() {
    unsigned char bytes[sizeof(T)];
    if (!source_.read(reinterpret_cast<char*>(bytes), sizeof(T))) refuse("is cut short");
    std::uint64_t value = 0;
    for (std::size_t i = sizeof(T); i-- > 0;) value = value << 8 | bytes[i];
    return static_cast<T>(value);
  }

  std::string_view counted(std::uint64_t count) {
    scratch_.clear();
    if (!source_.append(scratch_, count)) refuse("is cut short");
    return scratch_;
  }

  std::string_view line(std::uint64_t max_chars = UINT64_MAX) {
    scratch_.clear();
    for (;;) {
      const int c = source_.next();
      if (c < 0) refuse("is cut short");
      if (c == '\n') return scratch_;
      if (scratch_.size() == max_chars) refuse("a number is too long");
      scratch_.push_back(static_cast<char>(c));
    }
  }

  // The machine's state.

  PickleValue pop() {
    if (values_.empty() || (!marks_.empty() && marks_.back() == values_.size())) {
      refuse("takes a value from an empty stack");
    }
    const PickleValue value = values_.back();
    values_.pop_back();
    return value;
  }

  PickleValue top() const {
    if (values_.empty() || (!marks_.empty() && marks_.back() == values_.size())) {
      refuse("needs a value on an empty stack");
    }
    return values_.back();
  }

  std::size_t pop_mark() {
    if (marks_.empty()) refuse("goes back to a mark that was not set");
    const std::size_t mark = marks_.back();
    marks_.pop_back();
    return mark;
  }

  bool memo(int opcode) {
    switch (opcode) {
      case 0x94:
        put(memo_.size());
        return true;
      case 'h':
        get(little_endian<std::uint8_t>());
        return true;
      case 'j':
        get(little_endian<std::uint32_t>());
        return true;
      case 'q':
        put(little_endian<std::uint8_t>());
        return true;
      case 'r':
        put(little_endian<std::uint32_t>());
        return true;
      case 'g':
        get(memo_line());
        return true;
      case 'p':
        put(memo_line());
        return true;
      default:
        return false;
    }
  }

  std::uint64_t memo_line() {
    const std::string_view digits = line(kMaxNumberChars);
    std::uint64_t index = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), index);
    if (error != std::errc() || end != digits.data() + digits.size()) {
      refuse("a place in the memo must be a whole number");
    }
    return index;
  }

  void get(std::uint64_t index) {
    if (index >= memo_.size() || !memo_[index].second) {
      refuse("recalls memo entry " + std::to_string(index) + ", which was not stored");
    }
    values_.push_back(memo_[index].first);
  }

  void put(std::uint64_t index) {
    // Each entry takes a byte or more of the file, so no pickler uses a number above its size.
    if (index > source_.offset()) refuse("numbers a memo entry above the bytes before it");
    const PickleValue value = top();
    if (index == memo_.size()) {
      memo_.emplace_back(value, true);
      return;
    }
    if (index > memo_.size()) memo_.resize(index + 1);
    memo_[index] = {value, true};
  }

  bool number(int opcode) {
    switch (opcode) {
      case 'K':
        values_.push_back(tree_.make_int(little_endian<std::uint8_t>()));
        return true;
      case 'M':
        values_.push_back(tree_.make_int(little_endian<std::uint16_t>()));
        return true;
      case 'J':
        values_.push_back(tree_.make_int(little_endian<std::int32_t>()));
        return true;
      case 0x8a:
        values_.push_back(long_integer(little_endian<std::uint8_t>()));
        return true;
      case 0x8b: {
        const auto count = little_endian<std::int32_t>();
        if (count < 0) refuse("an integer of negative length");
        values_.push_back(long_integer(static_cast<std::uint64_t>(count)));
        return true;
      }
      case 'N':
        values_.emplace_back();
        return true;
      case 0x88:
      case 0x89:
        values_.push_back(PickleTree::make_bool(opcode == 0x88));
        return true;
      case 'G': {
        static_cast<void>(little_endian<std::uint64_t>());
        values_.push_back(PickleTree::make_float());
        return true;
      }
      case 'I':
      case 'L':
      case 'F':
        values_.push_back(number_line(opcode));
        return true;
      default:
        return false;
    }
  }

  // Two's complement, little endian.
  PickleValue long_integer(std::uint64_t count) {
    std::string_view bytes = counted(count);
    const bool negative = !bytes.empty() && static_cast<unsigned char>(bytes.back()) >= 0x80;
    const char fill = negative ? '\xff' : '\0';
    while (bytes.size() > 1 && bytes.back() == fill) bytes.remove_suffix(1);
    const auto byte = [&](std::size_t i) {
      return static_cast<unsigned char>(i < bytes.size() ? bytes[i] : fill);
    };
    if (bytes.size() <= 8) {
      std::uint64_t bits = 0;
      for (std::size_t i = 8; i-- > 0;) bits = bits << 8 | byte(i);
      if (negative == (bits >> 63 != 0)) return tree_.make_int(static_cast<std::int64_t>(bits));
      if (!negative) return tree_.make_unsigned(bits);
    }
    return PickleTree::make_float();  // an integer of more than 64 bits
  }

  PickleValue number_line(int opcode) {
    std::string_view digits = line(kMaxNumberChars);
    while (!digits.empty() && digits.back() == '\r') digits.remove_suffix(1);
    if (opcode == 'I' && (digits == "00" || digits == "01")) {
      return PickleTree::make_bool(digits == "01");
    }
    if (opcode != 'F') {
      if (digits.ends_with('L')) digits.remove_suffix(1);
      std::int64_t value = 0;
      std::uint64_t unsigned_value = 0;
      const char* const end = digits.data() + digits.size();
      if (const auto r = std::from_chars(digits.data(), end, value);
          r.ec == std::errc() && r.ptr == end) {
        return tree_.make_int(value);
      }
      if (const auto r = std::from_chars(digits.data(), end, unsigned_value);
          r.ec == std::errc() && r.ptr == end) {
        return tree_.make_unsigned(unsigned_value);
      }
    }
    double value = 0;
    const char* const end = digits.data() + digits.size();
    const auto [stop, error] = std::from_chars(digits.data(), end, value);
    if (stop != end || (error != std::errc() && error != std::errc::result_out_of_range)) {
      refuse("a line of digits must be a number");
    }
    return PickleTree::make_float();
  }

  bool text(int opcode) {
    const auto push = [this](PickleKind kind, std::string_view content) {
      values_.push_back(tree_.make_text(kind, content));
    };
    switch (opcode) {
      case 0x8c:
      case 'U':
        push(PickleKind::kText, counted(little_endian<std::uint8_t>()));
        return true;
      case 'X':
      case 'T':
        push(PickleKind::kText, counted(little_endian<std::uint32_t>()));
        return true;
      case 0x8d:
        push(PickleKind::kText, counted(little_endian<std::uint64_t>()));
        return true;
      case 'C':
        push(PickleKind::kBytes, counted(little_endian<std::uint8_t>()));
        return true;
      case 'B':
        push(PickleKind::kBytes, counted(little_endian<std::uint32_t>()));
        return true;
      case 0x8e:
      case 0x96:
        push(PickleKind::kBytes, counted(little_endian<std::uint64_t>()));
        return true;
      case 'S':
      case 'V':
        push(PickleKind::kText, unescaped(line(), opcode == 'S'));
        return true;
      default:
        return false;
    }
  }

  // Protocol 0 writes a string as Python source does (quoted), or with \u escapes alone.
  std::string unescaped(std::string_view body, bool quoted) const {
    if (quoted) {
      while (!body.empty() && std::isspace(static_cast<unsigned char>(body.back()))) {
        body.remove_suffix(1);
      }
      if (body.size() < 2 || body.front() != body.back() ||
          (body.front() != '\'' && body.front() != '"')) {
        refuse("a string must be in quotes");
      }
      body = body.substr(1, body.size() - 2);
    }
    std::string result;
    for (std::size_t i = 0; i < body.size(); ++i) {
      const char kind = body[i] == '\\' && i + 1 < body.size() ? body[i + 1] : '\0';
      const std::size_t digits = kind == 'x' && quoted ? 2 : kind == 'u' ? 4 : kind == 'U' ? 8 : 0;
      std::uint32_t code = 0;
      if (digits > 0 && i + 2 + digits <= body.size()) {
        const char* const begin = body.data() + i + 2;
        if (std::from_chars(begin, begin + digits, code, 16).ptr == begin + digits) {
          append_utf8(result, code);
          i += 1 + digits;
          continue;
        }
      }
      constexpr std::string_view kLetters = "ntr\\'\"";
      const std::size_t letter = quoted && kind != '\0' ? kLetters.find(kind) : kLetters.npos;
      if (letter != kLetters.npos) {
        result.push_back("\n\t\r\\'\""[letter]);
        ++i;
      } else {
        // Bytes without quotes are Latin-1. Bytes in quotes are kept as Python 2 wrote them.
        quoted ? result.push_back(body[i])
               : append_utf8(result, static_cast<unsigned char>(body[i]));
      }
    }
    return result;
  }

  static void append_utf8(std::string& out, std::uint32_t code) {
    if (code < 0x80) {
      out.push_back(static_cast<char>(code));
      return;
    }
    const int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    constexpr unsigned char kLead[] = {0, 0xc0, 0xe0, 0xf0};
    out.push_back(static_cast<char>(kLead[more] | ((code >> (6 * more)) & 0x3f)));
    for (int i = more; i-- > 0;) {
      out.push_back(static_cast<char>(0x80 | ((code >> (6 * i)) & 0x3f)));
    }
  }

  bool container(int opcode) {
    switch (opcode) {
      case '(':
        marks_.push_back(values_.size());
        return true;
      case '}':
        values_.push_back(tree_.make_container(PickleKind::kDict));
        return true;
      case ']':
        values_.push_back(tree_.make_container(PickleKind::kList));
        return true;
      case ')':
        values_.push_back(tree_.make_container(PickleKind::kTuple));
        return true;
      case 0x8f:
        values_.push_back(tree_.make_container(PickleKind::kSet));
        return true;
      case 'a':
        extend_by(1, PickleKind::kList);
        return true;
      case 's':
        extend_by(2, PickleKind::kDict);
        return true;
      case 'e':
        extend(pop_mark(), PickleKind::kList);
        return true;
      case 'u':
        extend(pop_mark(), PickleKind::kDict);
        return true;
      case 0x90:
        extend(pop_mark(), PickleKind::kSet);
        return true;
      case 'l':
        collect(pop_mark(), PickleKind::kList);
        return true;
      case 'd':
        collect(pop_mark(), PickleKind::kDict);
        return true;
      case 't':
        collect(pop_mark(), PickleKind::kTuple);
        return true;
      case 0x91:
        collect(pop_mark(), PickleKind::kSet);
        return true;
      case 0x85:
      case 0x86:
      case 0x87:
        collect(start_of(static_cast<std::size_t>(opcode - 0x84)), PickleKind::kTuple);
        return true;
      default:
        return false;
    }
  }

  // The index of the first of the last `count` values, all of which must be above the last mark.
  std::size_t start_of(std::size_t count) const {
    const std::size_t floor = marks_.empty() ? 0 : marks_.back();
    if (values_.size() < floor + count) refuse("takes a value from an empty stack");
    return values_.size() - count;
  }

  void extend_by(std::size_t count, PickleKind kind) { extend(start_of(count), kind); }

  // Moves the values from `begin` on into the container below them.
  void extend(std::size_t begin, PickleKind kind) {
    if (begin == 0 || (!marks_.empty() && marks_.back() == begin)) {
      refuse("adds items to nothing");
    }
    const PickleValue target = values_[begin - 1];
    if (target.kind() != kind) {
      refuse("adds items of a " + std::string(pickle_kind_name(kind)) + " to a " +
             std::string(pickle_kind_name(target.kind())));
    }
    add_items(target, begin);
  }

  void collect(std::size_t begin, PickleKind kind) {
    const PickleValue made = tree_.make_container(kind);
    add_items(made, begin);
    values_.push_back(made);
  }

  void add_items(PickleValue target, std::size_t begin) {
    const std::span<const PickleValue> items = std::span(values_).subspan(begin);
    if (target.kind() == PickleKind::kDict) {
      if (items.size() % 2 != 0) refuse("a dict has a key without a value");
      for (std::size_t i = 0; i < items.size(); i += 2) {
        const PickleKind key = items[i].kind();
        if (key == PickleKind::kList || key == PickleKind::kDict || key == PickleKind::kSet) {
          refuse("a key of a dict must not be a " + std::string(pickle_kind_name(key)));
        }
      }
    }
    if (!items.empty()) tree_.append(target, items);
    values_.resize(begin);
  }

  bool stack(int opcode) {
    switch (opcode) {
      case 0x80: {
        const auto protocol = little_endian<std::uint8_t>();
        if (protocol > 5) refuse("is of protocol " + std::to_string(protocol) + ": must be 0-5");
        return true;
      }
      case 0x95:  // the length of a frame: a hint for readers that fetch many bytes at once
        static_cast<void>(little_endian<std::uint64_t>());
        return true;
      case '0':
        if (!marks_.empty() && marks_.back() == values_.size()) {
          marks_.pop_back();
        } else {
          static_cast<void>(pop());
        }
        return true;
      case '1':
        values_.resize(pop_mark());
        return true;
      case '2':
        values_.push_back(top());
        return true;
      default:
        return false;
    }
  }

  ByteSource& source_;
  const PickleLimits& limits_;
  std::uint64_t instruction_ = 0;
  std::string scratch_;
  PickleTree tree_;
  std::vector<PickleValue> values_;
  std::vector<std::size_t> marks_;
  std::vector<std::pair<PickleValue, bool>> memo_;  // the value, and whether one was stored
};

}  // namespace

PickleTree read_pickle(ByteSource& source, const PickleLimits& limits) {
  return PickleReader(source, limits).run();
}

PickleTree read_pickle_file(const std::string& path, const PickleLimits& limits) {
  ByteSource source = ByteSource::open(path, limits.max_file_bytes);
  return read_pickle(source, limits);
}

}  // namespace sluice::record
