#include "offload/striped_space.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <memory>

#include "base/units.hpp"
#include "offload/storage_file.hpp"

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

std::string file_name(std::size_t index) {
  const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
  return "sluice-" + std::to_string(getpid()) + "-" + std::to_string(now) + "-" +
         std::to_string(index) + ".state";
}

}  // namespace

StripedSpace::StripedSpace(StorageEngine* engine, Ledger& ledger,
                           const std::vector<std::string>& paths, std::uint64_t bytes,
                           const std::string& kept_as)
    : engine_(engine),
      charge_(ledger.reserve(Tier::kStorage, Category::kOptimizer, bytes)),
      bytes_(bytes) {
  if (bytes == 0) return;
  if (paths.empty()) throw InputError("memory.storage_paths names no directory");
  try {
    for (std::size_t i = 0; i < paths.size(); ++i) {
      const std::uint64_t share = bytes_on_path(bytes, i, paths.size());
      if (kept_as.empty()) {
        files_.push_back(
            engine_->open(paths[i] + "/" + file_name(i), StorageFileMode::kScratch, share));
        continue;
      }
      const std::string path = kept_file(paths[i], kept_as, i);
      files_.push_back(engine_->open(path, StorageFileMode::kCreate, share));
      kept_files_.push_back(path);
      sync_directory_of(path);
    }
  } catch (...) {
    for (const StorageFileId file : files_) engine_->close(file);
    for (const std::string& path : kept_files_) ::unlink(path.c_str());
    throw;
  }
}

StripedSpace::StripedSpace(StorageEngine& engine, const std::vector<std::string>& files,
                           std::uint64_t bytes)
    : engine_(&engine), bytes_(bytes), kept_files_(files) {
  try {
    for (std::size_t i = 0; i < files.size(); ++i) {
      files_.push_back(engine_->open(files[i], StorageFileMode::kReadOnly, 0));
      const std::uint64_t expected = bytes_on_path(bytes, i, files.size());
      if (engine_->file_bytes(files_.back()) == expected) continue;
      throw InputError(
          "'" + files[i] + "' has " + std::to_string(engine_->file_bytes(files_.back())) +
          " bytes, and a run's state of " + std::to_string(expected) + " was written there");
    }
  } catch (...) {
    for (const StorageFileId file : files_) engine_->close(file);
    throw;
  }
}

std::string StripedSpace::kept_file(const std::string& path, const std::string& kept_as,
                                    std::size_t index) {
  return path + "/sluice-" + kept_as + "-" + std::to_string(index) + ".state";
}

void StripedSpace::flush() {
  for (const StorageFileId file : files_) engine_->flush(file);
}

StripedSpace::~StripedSpace() {
  for (const StorageFileId file : files_) {
    try {
      engine_->close(file);
    } catch (const Error&) {
      // The file is unlinked; the kernel takes its space back when the process ends.
    }
  }
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
    const std::uint64_t stripe = cursor / kStripeBytes;
    const std::uint64_t part_end = whole ? end : std::min(end, (stripe + 1) * kStripeBytes);
    StorageRequest request;
    request.op = op;
    request.file = files_[stripe % files_.size()];
    request.offset = stripe / files_.size() * kStripeBytes + cursor % kStripeBytes;
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
  auto promise = std::make_shared<std::promise<void>>();
  std::future<void> future = promise->get_future();
  submit(op, offset, data, bytes, [promise](std::exception_ptr error) {
    if (error) {
      promise->set_exception(error);
    } else {
      promise->set_value();
    }
  });
  if (future.wait_for(std::chrono::duration<double>(kDefaultDeadlineSeconds)) !=
      std::future_status::ready) {
    throw TimeoutError("a storage transfer of " + std::to_string(bytes) + " bytes");
  }
  future.get();
}

}  // namespace sluice
