// Splits a transfer of the space at stripe borders and gathers the results of its parts.
//
// Parts go to the engine one by one. A shared Gathering counts those still in flight and keeps the
// first error; the last part to end runs the caller's callback. With a single path neighbouring
// stripes are neighbours in its file, so the transfer stays whole. Creation is all or nothing: if a
// file cannot be made, the files before it are closed and removed.
#include "offload/striped_space.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>

#include "base/mutex.hpp"
#include "base/units.hpp"
#include "offload/storage_file.hpp"

namespace sluice::offload {
namespace {

// Shared state of one transfer's parts until the last has ended.
struct Gathering {
  std::atomic<std::uint32_t> parts_left;
  Mutex mutex;
  std::exception_ptr error SLUICE_GUARDED_BY(mutex);
  StorageEngine::Callback done;
};

StripeLayout layout_of(std::size_t paths, const std::vector<std::uint32_t>& shares) {
  // Empty `shares` means equal shares. A space without files may have no path, but a layout needs
  // at least one.
  if (shares.empty()) return StripeLayout::even(std::max<std::size_t>(paths, 1));
  SLUICE_CHECK(shares.size() == std::max<std::size_t>(paths, 1));
  return StripeLayout(shares);
}

}  // namespace

StripedSpace::StripedSpace(StorageEngine* engine, allocator::Ledger& ledger,
                           const std::vector<std::string>& paths, std::uint64_t bytes,
                           const RunId& run, bool kept, const std::vector<std::uint32_t>& shares)
    : engine_(engine),
      charge_(ledger.reserve(Tier::kStorage, Category::kOptimizer, bytes)),
      bytes_(bytes),
      layout_(layout_of(paths.size(), shares)) {
  if (bytes == 0) return;
  if (paths.empty()) throw InputError("memory.storage_paths names no directory");
  try {
    for (std::size_t i = 0; i < paths.size(); ++i) {
      const std::uint64_t share = layout_.bytes_on(i, bytes);
      const std::string path = paths[i] + "/sluice-" + run.hex() + "-" + std::to_string(i) +
                               (kept ? kKeptSuffix : kScratchSuffix);
      const StorageFileMode mode = kept ? StorageFileMode::kCreate : StorageFileMode::kScratch;
      files_.push_back({engine_->open(path, mode, share), path});
      // The name of a kept file must survive a crash.
      if (kept) sync_directory_of(path);
    }
  } catch (...) {
    for (const File& file : files_) {
      engine_->close(file.id);
      if (kept) ::unlink(file.path.c_str());
    }
    throw;
  }
}

StripedSpace::StripedSpace(StorageEngine& engine, const std::vector<std::string>& files,
                           std::uint64_t bytes, const std::vector<std::uint32_t>& shares)
    : engine_(&engine), bytes_(bytes), layout_(layout_of(files.size(), shares)) {
  try {
    for (std::size_t i = 0; i < files.size(); ++i) {
      // The sizes must match the layout exactly, or offsets would lead to other bytes.
      files_.push_back({engine_->open(files[i], StorageFileMode::kReadOnly, 0), files[i]});
      const std::uint64_t expected = layout_.bytes_on(i, bytes);
      const std::uint64_t found = engine_->file_bytes(files_.back().id);
      if (found == expected) continue;
      throw InputError("'" + files[i] + "' has " + std::to_string(found) +
                       " bytes, but the state of its run takes " + std::to_string(expected) +
                       " bytes there");
    }
  } catch (...) {
    for (const File& file : files_) engine_->close(file.id);
    throw;
  }
}

std::vector<std::string> StripedSpace::file_paths() const {
  std::vector<std::string> paths;
  for (const File& file : files_) paths.push_back(file.path);
  return paths;
}

void StripedSpace::flush() {
  for (const File& file : files_) engine_->flush(file.id);
}

StripedSpace::~StripedSpace() {
  for (const File& file : files_) {
    try {
      engine_->close(file.id);
    } catch (const Error&) {
      // A scratch file is unlinked; the kernel frees its space when the process ends.
    }
  }
}

StripedSpace::Location StripedSpace::locate(std::uint64_t offset) const {
  SLUICE_CHECK(offset < bytes_);
  return {files_[layout_.path_of(offset)].path, layout_.offset_in_file(offset)};
}

void StripedSpace::submit(StorageOp op, std::uint64_t offset, void* data, std::uint64_t bytes,
                          StorageEngine::Callback done, std::uint64_t needed_by) {
  SLUICE_CHECK(bytes > 0 && offset + bytes <= bytes_);
  const std::uint64_t first = offset / kStripeBytes;
  const std::uint64_t last = (offset + bytes - 1) / kStripeBytes;
  // With one path, neighbouring stripes are neighbours in its file too.
  const bool whole = first == last || files_.size() == 1;
  auto gathering = std::make_shared<Gathering>();
  gathering->parts_left = whole ? 1 : static_cast<std::uint32_t>(last - first + 1);
  gathering->done = std::move(done);
  const auto part_done = [gathering](std::exception_ptr error) {
    if (error) {
      const MutexLock lock(gathering->mutex);
      if (!gathering->error) gathering->error = error;
    }
    // The last part to end sees all errors, since each part stores its error before it counts.
    if (gathering->parts_left.fetch_sub(1) > 1) return;
    std::exception_ptr first_error;
    {
      const MutexLock lock(gathering->mutex);
      first_error = gathering->error;
    }
    gathering->done(first_error);
  };
  std::uint64_t cursor = offset;
  const std::uint64_t end = offset + bytes;
  while (cursor < end) {
    // Cut at the next stripe border, because the next stripe may lie in another file.
    const std::uint64_t stripe_end = (cursor / kStripeBytes + 1) * kStripeBytes;
    const std::uint64_t part_end = whole ? end : std::min(end, stripe_end);
    StorageRequest request;
    request.op = op;
    request.file = files_[layout_.path_of(cursor)].id;
    request.offset = layout_.offset_in_file(cursor);
    request.data = static_cast<std::byte*>(data) + (cursor - offset);
    request.bytes = part_end - cursor;
    request.needed_by = needed_by;
    try {
      engine_->submit(request, part_done);
    } catch (...) {
      part_done(std::current_exception());  // this part gets no callback; the others still do
    }
    cursor = part_end;
  }
}

void StripedSpace::transfer(StorageOp op, std::uint64_t offset, void* data, std::uint64_t bytes) {
  submit_and_wait(bytes, [&](StorageEngine::Callback done) {
    submit(op, offset, data, bytes, std::move(done));
  });
}

}  // namespace sluice::offload
