#include "offload/striped_space.hpp"

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>

#include "base/units.hpp"

namespace sluice {
namespace {

// What the parts of one transfer share until the last has ended.
struct Gathering {
  std::atomic<std::uint32_t> parts_left;
  std::mutex mutex;
  std::exception_ptr error;  // guarded by mutex
  StorageEngine::Callback done;
};

// Bytes of the space that land on path `index` of `paths`.
std::uint64_t bytes_on_path(std::uint64_t bytes, std::size_t index, std::size_t paths) {
  const std::uint64_t stripes = ceil_div(bytes, StripedSpace::kStripeBytes);
  const std::uint64_t mine = stripes / paths + (index < stripes % paths ? 1 : 0);
  const bool holds_last = stripes > 0 && (stripes - 1) % paths == index;
  const std::uint64_t missing = stripes * StripedSpace::kStripeBytes - bytes;
  return mine * StripedSpace::kStripeBytes - (holds_last ? missing : 0);
}

std::string file_name(const RunId& run, std::size_t index) {
  return "sluice-" + run.hex() + "-" + std::to_string(index) + ".state";
}

}  // namespace

StripedSpace::StripedSpace(StorageEngine* engine, Ledger& ledger,
                           const std::vector<std::string>& paths, std::uint64_t bytes,
                           const RunId& run)
    : engine_(engine),
      charge_(ledger.reserve(Tier::kStorage, Category::kOptimizer, bytes)),
      bytes_(bytes) {
  if (bytes == 0) return;
  if (paths.empty()) throw InputError("memory.storage_paths names no directory");
  try {
    for (std::size_t i = 0; i < paths.size(); ++i) {
      const std::uint64_t share = bytes_on_path(bytes, i, paths.size());
      std::string path = paths[i] + "/" + file_name(run, i);
      files_.push_back({engine_->open(path, StorageFileMode::kScratch, share), std::move(path)});
    }
  } catch (...) {
    for (const File& file : files_) engine_->close(file.id);
    throw;
  }
}

StripedSpace::~StripedSpace() {
  for (const File& file : files_) {
    try {
      engine_->close(file.id);
    } catch (const Error&) {
      // The file is unlinked; the kernel takes its space back when the process ends.
    }
  }
}

StripedSpace::Location StripedSpace::locate(std::uint64_t offset) const {
  SLUICE_CHECK(offset < bytes_);
  return {files_[file_at(offset)].path, offset_in_file(offset)};
}

void StripedSpace::submit(StorageOp op, std::uint64_t offset, void* data, std::uint64_t bytes,
                          StorageEngine::Callback done) {
  SLUICE_CHECK(bytes > 0 && offset + bytes <= bytes_);
  const std::uint64_t first = offset / kStripeBytes;
  const std::uint64_t last = (offset + bytes - 1) / kStripeBytes;
  // With one path neighbouring stripes are neighbours in its file too.
  const bool whole = first == last || files_.size() == 1;
  auto gathering = std::make_shared<Gathering>();
  gathering->parts_left = whole ? 1 : static_cast<std::uint32_t>(last - first + 1);
  gathering->done = std::move(done);
  const auto part_done = [gathering](std::exception_ptr error) {
    if (error) {
      const std::lock_guard lock(gathering->mutex);
      if (!gathering->error) gathering->error = error;
    }
    if (gathering->parts_left.fetch_sub(1) == 1) gathering->done(gathering->error);
  };
  std::uint64_t cursor = offset;
  const std::uint64_t end = offset + bytes;
  while (cursor < end) {
    const std::uint64_t stripe_end = (cursor / kStripeBytes + 1) * kStripeBytes;
    const std::uint64_t part_end = whole ? end : std::min(end, stripe_end);
    StorageRequest request;
    request.op = op;
    request.file = files_[file_at(cursor)].id;
    request.offset = offset_in_file(cursor);
    request.data = static_cast<std::byte*>(data) + (cursor - offset);
    request.bytes = part_end - cursor;
    try {
      engine_->submit(request, part_done);
    } catch (...) {
      part_done(std::current_exception());  // this part will not call back; the others still do
    }
    cursor = part_end;
  }
}

void StripedSpace::transfer(StorageOp op, std::uint64_t offset, void* data, std::uint64_t bytes) {
  submit_and_wait(bytes, [&](StorageEngine::Callback done) {
    submit(op, offset, data, bytes, std::move(done));
  });
}

}  // namespace sluice
