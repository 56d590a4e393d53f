// What GMLake adds to a caching allocator: stitched blocks.
#include <algorithm>

#include "base/error.hpp"
#include "tools/replay/peers/gmlake.hpp"

namespace sluice::replay {
namespace {

constexpr std::uint64_t kFragmentLimit = std::uint64_t{512} << 20;  // stitched from this size on
constexpr std::uint64_t kReuseLimit = 10;  // a stitched block serves a tenth of its size at least
constexpr std::uint64_t kCollectLimit = std::uint64_t{1000} << 30;

}  // namespace

// A page goes into use: no stitched block that maps it, beside `by`, is free as a whole.
void GmLake::use_page(LakePage& page, const StitchedBlock* by) {
  SLUICE_DCHECK(page.is_free);
  page.is_free = false;
  for (StitchedBlock* const other : page.stitched) {
    if (other == by) continue;
    if (other->free_pages == other->pages.size() && !other->is_active) free_stitched_.erase(other);
    --other->free_pages;
  }
}

void GmLake::leave_page(LakePage& page, const StitchedBlock* by) {
  page.is_free = true;
  for (StitchedBlock* const other : page.stitched) {
    if (other == by) continue;
    ++other->free_pages;
    if (other->free_pages == other->pages.size() && !other->is_active) free_stitched_.insert(other);
  }
}

// Uses the first pages of a free stitched block; primitive blocks that hold more are cut.
GmLake::Holding GmLake::take_stitched(const Request& request) {
  if (request.is_small) return {};
  StitchedBlock key;
  key.stream = request.stream;
  key.bytes = request.bytes;
  const auto found = free_stitched_.lower_bound(&key);
  if (found == free_stitched_.end() || (*found)->stream != request.stream ||
      (*found)->bytes > request.bytes * kReuseLimit) {
    return {};
  }
  StitchedBlock* const stitched = *found;
  free_stitched_.erase(found);
  stitched->is_active = true;
  stitched->used_pages = static_cast<std::size_t>(request.bytes / kLakePage);
  stitched->free_pages = stitched->pages.size() - stitched->used_pages;
  std::vector<LakeBlock*> homes;
  for (std::size_t i = 0; i < stitched->used_pages; ++i) {
    LakePage& page = *stitched->pages[i];
    use_page(page, stitched);
    LakeBlock* const home = page.home;
    if (home->allocated) continue;
    home->pool->blocks.erase(home);
    home->allocated = true;
    homes.push_back(home);
  }
  for (LakeBlock* const home : homes) cut_by_use(home);
  return {nullptr, stitched};
}

// Cuts a block where pages in use meet free ones; free parts return to the pool.
void GmLake::cut_by_use(LakeBlock* block) {
  const std::size_t count = block->page_count();
  std::size_t run = 1;
  while (run < count && block->pages[run].is_free == block->pages[0].is_free) ++run;
  if (run == count) {
    block->allocated = !block->pages[0].is_free;
    if (!block->allocated) block->pool->blocks.insert(block);
    return;
  }
  LakeBlock* const front = store_.make(*block);
  front->bytes = run * kLakePage;
  front->splice(block->prev, block);
  front->own_pages();
  front->allocated = !front->pages[0].is_free;
  if (!front->allocated) front->pool->blocks.insert(front);
  block->address += front->bytes;
  block->bytes -= front->bytes;
  block->pages += run;
  cut_by_use(block);
}

// get_fused_fragmented_blocks: the stream's free blocks, largest first, until they are enough; the
// last is split. At least two, for one alone would have been found before.
GmLake::Holding GmLake::stitch(const Request& request) {
  if (request.is_small || request.bytes < kFragmentLimit) return {};
  LakeBlock key;
  key.stream = request.stream;
  key.bytes = UINT64_MAX;
  std::vector<LakeBlock*> parts;
  std::uint64_t bytes = 0;
  for (auto at = large_.blocks.lower_bound(&key);
       bytes < request.bytes && at != large_.blocks.begin();) {
    LakeBlock* const block = *--at;
    if (block->stream != request.stream) break;
    if (block->pages == nullptr) continue;
    parts.push_back(block);
    bytes += block->bytes;
  }
  if (bytes < request.bytes || parts.size() < 2) return {};
  for (LakeBlock* const part : parts) {
    large_.blocks.erase(part);
    part->allocated = true;
  }
  if (bytes > request.bytes) {
    parts.back() = split(parts.back(), parts.back()->bytes - (bytes - request.bytes));
  }
  StitchedBlock& stitched = stitched_.emplace_back();
  stitched.self = std::prev(stitched_.end());
  stitched.stream = request.stream;
  stitched.bytes = request.bytes;
  stitched.address = device_.reserve_addresses(request.bytes);
  stitched.is_active = true;
  for (LakeBlock* const part : parts) {
    part->allocated = true;
    for (std::size_t i = 0; i < part->page_count(); ++i) {
      LakePage& page = part->pages[i];
      use_page(page, nullptr);
      page.stitched.push_back(&stitched);
      stitched.pages.push_back(&page);
    }
  }
  stitched.used_pages = stitched.pages.size();
  device_.counters.remaps += stitched.pages.size();
  stitched_bytes_ += request.bytes;
  if (stitched_bytes_ > kCollectLimit) collect_stitched();
  return {nullptr, &stitched};
}

void GmLake::free_stitched(StitchedBlock* stitched) {
  std::vector<LakeBlock*> homes;
  for (std::size_t i = 0; i < stitched->used_pages; ++i) {
    LakePage& page = *stitched->pages[i];
    leave_page(page, stitched);
    homes.push_back(page.home);
  }
  stitched->free_pages += stitched->used_pages;
  stitched->used_pages = 0;
  stitched->is_active = false;
  if (stitched->is_condemned) {
    destroy(stitched);
  } else if (stitched->free_pages == stitched->pages.size()) {
    free_stitched_.insert(stitched);
  }
  // Pages of one home are used and left together, for a home was cut by their use.
  std::sort(homes.begin(), homes.end(),
            [](const LakeBlock* a, const LakeBlock* b) { return a->address < b->address; });
  homes.erase(std::unique(homes.begin(), homes.end()), homes.end());
  for (LakeBlock* const home : homes) free_block(home);
}

// Unmaps a stitched block that nobody holds.
void GmLake::destroy(StitchedBlock* stitched) {
  SLUICE_CHECK(!stitched->is_active);
  for (LakePage* const page : stitched->pages) {
    if (page != nullptr) std::erase(page->stitched, stitched);
  }
  free_stitched_.erase(stitched);
  device_.release_addresses(stitched->address);
  stitched_.erase(stitched->self);
}

// Before a free block's pages go back to the device: stitched blocks that map them go too, or,
// where a caller holds other pages of them, when it gives those back.
void GmLake::detach_pages(LakeBlock* block) {
  for (std::size_t i = 0; i < block->page_count(); ++i) {
    LakePage& page = block->pages[i];
    while (!page.stitched.empty()) {
      StitchedBlock* const stitched = page.stitched.back();
      if (!stitched->is_active) {
        destroy(stitched);
        continue;
      }
      stitched->is_condemned = true;
      std::replace(stitched->pages.begin(), stitched->pages.end(), &page,
                   static_cast<LakePage*>(nullptr));
      page.stitched.pop_back();
    }
  }
}

// garbage_collect_fused_blocks, of all that nobody holds. What release took counts on, as there.
void GmLake::collect_stitched() {
  for (auto at = stitched_.begin(); at != stitched_.end();) {
    StitchedBlock& stitched = *at++;
    if (stitched.is_active) continue;
    stitched_bytes_ -= std::min(stitched_bytes_, stitched.bytes);
    destroy(&stitched);
  }
}

}  // namespace sluice::replay
