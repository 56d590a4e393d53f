#include "tools/replay/read_trace.hpp"

#include <algorithm>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "allocator/record/format/byte_source.hpp"
#include "allocator/record/format/memory_trace_csv.hpp"
#include "allocator/record/format/torch_snapshot.hpp"
#include "base/error.hpp"
#include "tools/replay/lifetime_csv.hpp"
#include "tools/replay/rmm_log.hpp"

namespace sluice::replay {
namespace {

enum class TraceFormat : std::uint8_t { kTorch, kSluice, kRmm, kLifetimes, kUnknown };

// The words between commas of the first line (at most 4 KiB of it), sorted.
std::vector<std::string> header_words(const std::string& head) {
  std::string_view text = head;
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);
  const std::size_t begin = text.find_first_not_of("\r\n");
  if (begin == std::string_view::npos) return {};
  text = text.substr(begin, text.find_first_of("\r\n", begin) - begin);
  std::vector<std::string> words(1);
  for (const char c : text) {
    if (c == ',') {
      words.emplace_back();
    } else if (c != ' ' && c != '"') {
      words.back().push_back(c);
    }
  }
  std::sort(words.begin(), words.end());
  return words;
}

TraceFormat recognise(const std::string& head) {
  if (head.starts_with('\x80')) return TraceFormat::kTorch;
  // Protocols 0 and 1 begin with an empty dict or list.
  for (const std::string_view start : {"(d", "}q", "(l", "]q"}) {
    if (head.starts_with(start)) return TraceFormat::kTorch;
  }
  const std::vector<std::string> words = header_words(head);
  const auto has = [&](std::vector<std::string> wanted) {
    std::sort(wanted.begin(), wanted.end());
    return std::includes(words.begin(), words.end(), wanted.begin(), wanted.end());
  };
  if (has({"time_ns", "action", "address", "bytes"})) return TraceFormat::kSluice;
  if (has({"Action", "Pointer", "Size", "Stream"})) return TraceFormat::kRmm;
  if (has({"id", "lower", "upper", "size"})) return TraceFormat::kLifetimes;
  return TraceFormat::kUnknown;
}

// Names the kind of a file that is often given by mistake.
std::string_view describe_other_file(const std::string& head) {
  if (head.empty()) return "is empty";
  if (head.starts_with("PK\x03\x04")) return "is a zip archive (a checkpoint of torch.save?)";
  if (head.starts_with("\x1f\x8b")) return "is compressed by gzip";
  if (head.starts_with("\x28\xb5\x2f\xfd")) return "is compressed by zstd";
  if (head.starts_with("{") || head.starts_with("[")) return "looks like JSON";
  if (head.starts_with("<")) return "looks like HTML";
  return "is not a memory trace";
}

// The first 4 KiB.
std::string head_of(const std::string& path) {
  constexpr std::size_t kHeadBytes = 4096;
  std::string head;
  record::ByteSource source = record::ByteSource::open(path, UINT64_MAX);
  static_cast<void>(source.append(head, kHeadBytes));
  return head;
}

}  // namespace

bool is_trace_file(const std::string& path) {
  return recognise(head_of(path)) != TraceFormat::kUnknown;
}

record::MemoryTrace trace_of_lifetimes(std::span<const packing::Lifetime> lifetimes,
                                       const std::string& source) {
  struct Moment {
    std::uint64_t position;
    bool is_alloc;
    std::uint32_t id;
  };
  std::vector<Moment> moments;
  record::MemoryTrace trace;
  trace.source = source;
  trace.format = "lifetimes";
  for (std::size_t i = 0; i < lifetimes.size(); ++i) {
    const auto id = static_cast<std::uint32_t>(i);
    trace.allocations.push_back({.bytes = lifetimes[i].bytes});
    moments.push_back({lifetimes[i].lower, true, id});
    moments.push_back({lifetimes[i].upper, false, id});
  }
  std::sort(moments.begin(), moments.end(), [](const Moment& a, const Moment& b) {
    return std::tie(a.position, a.is_alloc, a.id) < std::tie(b.position, b.is_alloc, b.id);
  });
  for (const Moment& moment : moments) {
    trace.operations.push_back(
        {moment.is_alloc ? record::TraceAction::kAlloc : record::TraceAction::kFree, moment.id});
  }
  return trace;
}

ReadTrace read_trace(const std::string& path, const ReadTraceOptions& options) {
  const std::string head = head_of(path);
  ReadTrace result;
  switch (recognise(head)) {
    case TraceFormat::kTorch:
      result.trace = record::trace_of(record::read_torch_snapshot(path, options.device), path,
                                      "torch", &result.defects);
      break;
    case TraceFormat::kSluice:
      result.trace =
          record::trace_of(record::read_memory_trace_csv(path), path, "sluice", &result.defects);
      break;
    case TraceFormat::kRmm:
      result.trace = read_rmm_trace(path, &result.defects);
      break;
    case TraceFormat::kLifetimes:
      result.trace = trace_of_lifetimes(read_lifetime_csv(path), path);
      break;
    case TraceFormat::kUnknown:
      throw InputError("'" + path + "' " + std::string(describe_other_file(head)) +
                       ": must be a PyTorch memory snapshot (a pickle), an RMM log, a trace with "
                       "the columns " +
                       std::string(record::kMemoryTraceCsvHeader) +
                       ", or lifetimes with the columns id,lower,upper,size");
  }
  return result;
}

}  // namespace sluice::replay
