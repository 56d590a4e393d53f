// make_room() collects the victims, then asks BlockSpace for the cheapest window. cost_of() rates
// each unbacked page by the work to fill it. Addresses with work in flight would make the host
// wait, so they cost more than any window: the pool then adds a segment of new addresses instead.
//
// The missing pages are filled in two rounds. Reclaims go first, because a page that is stolen for
// another address could have been reclaimed at its own. Then each other page is stolen while the
// remap budget lasts, or fresh. Below the peak of use (unstitched_pages_) fresh pages come first.
//
// choose_victim() prefers the requester's own free blocks, because a page of another stream costs
// an event wait. Among them it takes the smallest that has all wanted pages, so that large blocks
// stay whole, else the largest. It compares at most kMaxCompared victims. Pages are taken from the
// victim's end, so that its first page, which is its key, stays.
#include "allocator/caching/page_mover.hpp"

#include <algorithm>
#include <vector>

#include "base/error.hpp"

namespace sluice::allocator {
namespace {

// The cost of filling an unbacked page, in pages to map.
constexpr double kMapped = 1.0 / 16;  // a free page is still mapped there: no driver call
constexpr double kEmpty = 1.0;        // nothing is mapped there
constexpr double kStale = 1.5;        // another page must be unmapped first
constexpr double kBusy = 1e9;         // the same, but work there may be queued: the host would wait

constexpr std::size_t kMaxCompared = 1024;  // victims compared for each choice

}  // namespace

// Collects all whole pages in free blocks of movable pools, keyed by address. O(n log n).
void PageMover::collect_victims() {
  victims_.clear();
  for (StreamPool& pool : allocator_.pools_) {
    pool.mutex.assert_held();
    if (!pool.movable) continue;
    for (BlockSpace* space : {&pool.small, &pool.large}) {
      space->visit_large_free([&](Block* block) {
        const std::uint64_t first = space->first_page(*block);
        const std::uint64_t bytes = space->page_count(*block) * allocator_.page_bytes_;
        add_victim({block, &pool, space, first + bytes}, first);
        return true;
      });
    }
  }
}

void PageMover::add_victim(const Victim& victim, std::uint64_t first) {
  if (first < victim.end) victims_.emplace(first, victim);
}

// The victim that holds the page, or end(). One search in the map, because victims are disjoint.
PageMover::Victims::iterator PageMover::find_victim(std::uint64_t page_address) {
  const auto after = victims_.upper_bound(page_address);
  if (after == victims_.begin()) return victims_.end();
  const auto victim = std::prev(after);
  return page_address < victim->second.end ? victim : victims_.end();
}

std::uint64_t PageMover::pages_of(const Victims::value_type& victim) const {
  return (victim.second.end - victim.first) / allocator_.page_bytes_;
}

// Finds the run around the window, then cuts the window out of the run's victims: a victim may
// leave a part before the window and a part after it. Their blocks are looked up again from now on.
void PageMover::set_window(Block* block, std::uint64_t begin, std::uint64_t end) {
  run_ = block;
  while (run_->previous != nullptr && run_->previous->kind != BlockKind::kUsed) {
    run_ = run_->previous;
  }
  const std::uint64_t page_bytes = allocator_.page_bytes_;
  const std::uint64_t window_begin = begin / page_bytes * page_bytes;
  const std::uint64_t window_end = round_up(end, page_bytes);
  for (Block* one = run_; one != nullptr && one->kind != BlockKind::kUsed; one = one->next) {
    if (one->kind != BlockKind::kFree) continue;
    const auto found = victims_.find(round_up(one->address, page_bytes));
    if (found == victims_.end()) continue;
    const std::uint64_t first = found->first;
    Victim before = found->second;
    Victim after = before;
    before.block = after.block = nullptr;
    victims_.erase(found);
    before.end = std::min(before.end, window_begin);
    add_victim(before, first);
    add_victim(after, std::max(first, window_end));
  }
}

Block* PageMover::block_in_run(std::uint64_t address) const {
  Block* block = run_;
  while (block->address + block->bytes <= address) block = block->next;
  return block;
}

// Reserves a new segment of addresses for the requester's space and publishes it.
void PageMover::add_segment(BlockSpace& space, std::uint64_t bytes) {
  requester_.mutex.assert_held();
  const bool is_small = &space == &requester_.small;
  // Small blocks need few addresses. A request larger than a segment gets one of its own size.
  const std::uint64_t usual_bytes = allocator_.options_.segment_bytes / (is_small ? 16 : 1);
  const std::uint64_t page_bytes = allocator_.page_bytes_;
  const std::uint64_t segment_bytes = round_up(std::max(usual_bytes, bytes), page_bytes);
  auto segment = std::make_unique<AddressSegment>(allocator_.device_.reserve(segment_bytes),
                                                  page_bytes, requester_, is_small);
  AddressSegment& added = *requester_.segments.emplace_back(std::move(segment));
  try {
    allocator_.publish_segments();
  } catch (...) {
    requester_.segments.pop_back();
    throw;
  }
  space.add_range(added.base(), added.bytes(), &added);
}

double PageMover::cost_of(const AddressSegment& segment, std::uint64_t page_address) {
  const PageEntry& entry = segment.entry_at(page_address);
  if (entry.page == nullptr) return kEmpty;
  const PageEntry* const holder = entry.page->holder;
  if (find_victim(holder->segment->address_of(*holder)) != victims_.end()) return kMapped;
  const bool busy = entry.busy_until != nullptr && !entry.busy_until->done();
  return busy ? kBusy : kStale;
}

Block* PageMover::make_room(std::uint64_t bytes, bool by_all_means) {
  allocator_.growth_mutex_.assert_held();
  requester_.mutex.assert_held();
  BlockSpace& space = requester_.space_for(bytes);
  collect_victims();
  const auto cost = [this](const AddressSegment& segment, std::uint64_t page) {
    return cost_of(segment, page);
  };
  auto window = space.find_window(bytes, cost);
  if (!window || window->cost >= kBusy) {
    add_segment(space, bytes);
    window = space.find_window(bytes, cost);
  }
  SLUICE_CHECK(window.has_value());
  const std::uint64_t page_bytes = allocator_.page_bytes_;
  const std::uint64_t end = window->address + bytes;
  set_window(window->first, window->address, end);
  std::vector<std::uint64_t> missing;
  for (const Block* block = window->first; block != nullptr && block->address < end;
       block = block->next) {
    if (block->kind != BlockKind::kUnbacked) continue;
    const std::uint64_t low = std::max(block->address, window->address / page_bytes * page_bytes);
    const std::uint64_t high = std::min(block->address + block->bytes, end);
    for (std::uint64_t page = low; page < high; page += page_bytes) missing.push_back(page);
  }
  const auto fill = [&](std::uint64_t page) {
    space.fill(block_in_run(page), page);
    record(record::MemoryAction::kSegmentMap, requester_, page);
  };
  // First reclaim pages that these addresses still map: stealing could move them elsewhere.
  std::erase_if(missing, [&](std::uint64_t page) SLUICE_REQUIRES(allocator_.growth_mutex_) {
    space.reserve_records(kMoveRecords);  // so that fill() cannot throw after the page has moved
    if (!reclaim(run_->segment->entry_at(page))) return false;
    fill(page);
    return true;
  });
  for (std::size_t i = 0; i < missing.size(); ++i) {
    space.reserve_records(kMoveRecords);
    PageEntry& entry = run_->segment->entry_at(missing[i]);
    const std::uint64_t wanted_pages = missing.size() - i;
    const bool grows = allocator_.held_pages_ < allocator_.unstitched_pages_;
    const bool steals = !grows && allocator_.step_remaps_ < allocator_.remap_budget();
    const bool has_page = (steals && steal(entry, wanted_pages)) || take_fresh(entry) ||
                          (by_all_means && steal(entry, wanted_pages));
    if (!has_page) return nullptr;
    fill(missing[i]);
  }
  return space.take_at(block_in_run(window->address), window->address, bytes);
}

// The page that the entry still maps comes back if its holder's block is free: bookkeeping alone.
bool PageMover::reclaim(PageEntry& entry) {
  if (entry.page == nullptr) return false;
  PageEntry& holder = *entry.page->holder;
  const auto victim = find_victim(holder.segment->address_of(holder));
  if (victim == victims_.end()) return false;
  move(victim, holder, entry);
  ++allocator_.reclaims_;
  return true;
}

// Takes the last page of the current victim and maps it at the entry. Stays with one victim until
// it is used up, so that few blocks are cut.
bool PageMover::steal(PageEntry& entry, std::uint64_t wanted_pages) {
  auto victim = victims_.find(current_victim_);
  if (victim == victims_.end()) victim = choose_victim(wanted_pages);
  if (victim == victims_.end()) return false;
  current_victim_ = victim->first;
  // From the end, so that the victim's first page stays.
  const std::uint64_t page_address = victim->second.end - allocator_.page_bytes_;
  const Block* const block =
      victim->second.block != nullptr ? victim->second.block : run_;  // of the same segment
  PageEntry& from = block->segment->entry_at(page_address);
  map_page(entry, *from.page);
  move(victim, from, entry);
  ++allocator_.remaps_;
  ++allocator_.step_remaps_;
  return true;
}

// Takes a new page from the page pool if the ledger's caps and the device allow it.
bool PageMover::take_fresh(PageEntry& entry) {
  if (allocator_.spare_.empty()) {
    allocator_.spare_.reserve(allocator_.physical_.size() + 1);
    allocator_.spare_.push_back(&allocator_.physical_.emplace_back());
  }
  PagePool::Handle* const handle = allocator_.pages_.try_take_page(allocator_.options_.category);
  if (handle == nullptr) return false;
  PhysicalPage& page = *allocator_.spare_.back();
  page.handle = handle;
  try {
    map_page(entry, page);
  } catch (...) {
    allocator_.pages_.put_back(handle);
    page.handle = nullptr;
    throw;
  }
  allocator_.spare_.pop_back();
  page.holder = &entry;
  ++allocator_.fresh_pages_;
  ++allocator_.held_pages_;
  allocator_.peak_pages_ = std::max(allocator_.peak_pages_, allocator_.held_pages_);
  return true;
}

// Chooses the victim to steal from. The requester's own victims come first, since another stream's
// cost a wait. Among equals the smallest that suffices wins, else the largest.
PageMover::Victims::iterator PageMover::choose_victim(std::uint64_t wanted_pages) {
  auto best = victims_.end();
  std::uint64_t best_pages = 0;
  std::size_t looks = 0;
  for (auto victim = victims_.begin(); victim != victims_.end(); ++victim) {
    const std::uint64_t pages = pages_of(*victim);
    if (best != victims_.end()) {
      if (++looks > kMaxCompared) break;
      const bool own = victim->second.pool == &requester_;
      const bool best_own = best->second.pool == &requester_;
      if (own != best_own) {
        if (best_own) continue;
      } else if (best_pages >= wanted_pages ? (pages < wanted_pages || pages >= best_pages)
                                            : pages <= best_pages) {
        continue;
      }
    }
    best = victim;
    best_pages = pages;
  }
  return best;
}

// Changes the page's holder from `from` to `entry`. The page is a part of the victim: pages before
// it stay in the victim, pages after it become a new one. In the run of the window the block is
// looked up, because the run's blocks change.
void PageMover::move(Victims::iterator victim, PageEntry& from, PageEntry& entry) {
  const Victim giver = victim->second;
  const std::uint64_t page_address = from.segment->address_of(from);
  const std::uint64_t page_end = page_address + allocator_.page_bytes_;
  const std::shared_ptr<device::Event> event = event_of(*giver.pool);
  giver.space->reserve_records(kMoveRecords);
  Victim* const after =
      page_end < giver.end ? &victims_.emplace(page_end, giver).first->second : nullptr;
  // Nothing throws from here on.
  if (victim->first < page_address) {
    victim->second.end = page_address;
  } else {
    victims_.erase(victim);
  }
  from.busy_until = event;
  entry.busy_until = nullptr;
  entry.page->holder = &entry;
  const bool in_run = giver.block == nullptr;
  Block* const block = in_run ? block_in_run(page_address) : giver.block;
  const Block* const unbacked = giver.space->unback(block, page_address);
  record(record::MemoryAction::kSegmentUnmap, *giver.pool, page_address);
  if (after != nullptr && !in_run) after->block = unbacked->next;
}

void PageMover::record(record::MemoryAction action, const StreamPool& pool,
                       std::uint64_t page_address) {
  record::MemoryRecorder* const recorder = allocator_.options_.recorder;
  if (recorder == nullptr) return;
  recorder->record(action, pool.id, page_address, allocator_.page_bytes_);
}

void PageMover::map_page(PageEntry& entry, PhysicalPage& page) {
  if (entry.page != nullptr) {
    if (entry.busy_until != nullptr && !entry.busy_until->done()) {
      ++allocator_.synchronisations_;
      entry.busy_until->synchronize(Deadline::after_seconds(kDefaultDeadlineSeconds),
                                    "queued work on addresses that must map another page");
    }
    PageEntry** link = &entry.page->aliases;
    while (*link != &entry) link = &(*link)->next_alias;
    *link = entry.next_alias;
    entry.page = nullptr;
    entry.mapping = device::Mapping();
  }
  AddressSegment& segment = *entry.segment;
  entry.mapping = allocator_.device_.map(
      segment.range(), segment.address_of(entry) - segment.base(), page.handle->block);
  entry.busy_until = nullptr;
  entry.page = &page;
  entry.next_alias = page.aliases;
  page.aliases = &entry;
}

const std::shared_ptr<device::Event>& PageMover::event_of(StreamPool& pool) {
  std::shared_ptr<device::Event>& event = events_[&pool];
  if (event == nullptr) {
    event = allocator_.device_.create_event();
    pool.stream.record(*event);
    if (&pool != &requester_) {
      requester_.stream.wait(*event);
      ++allocator_.event_waits_;
    }
  }
  return event;
}

bool PageMover::wait_for_pending(std::uint64_t bytes, bool even_if_pages_suffice) {
  struct Candidate {
    StreamPool* pool;
    std::size_t index;
    std::uint64_t pages;
    std::uint64_t bytes;
  };
  allocator_.growth_mutex_.assert_held();
  requester_.mutex.assert_held();
  const BlockSpace& space = requester_.space_for(bytes);
  std::vector<Candidate> candidates;
  const auto sufficient = [&](const Candidate& one, std::uint64_t missing_pages) {
    one.pool->mutex.assert_held();
    const Block& block = *one.pool->pending[one.index].block;
    return one.pages >= missing_pages ||
           (&one.pool->space_of(block) == &space && one.bytes >= bytes);
  };
  for (StreamPool& pool : allocator_.pools_) {
    pool.mutex.assert_held();
    for (std::size_t i = 0; i < pool.pending.size(); ++i) {
      const Block& block = *pool.pending[i].block;
      const std::uint64_t pages = pool.movable ? pool.space_of(block).page_count(block) : 0;
      candidates.push_back({&pool, i, pages, block.bytes});
    }
  }
  if (candidates.empty()) return false;
  collect_victims();
  const std::uint64_t whole_pages =
      round_up(bytes, allocator_.page_bytes_) / allocator_.page_bytes_;
  std::uint64_t found_pages = 0;
  for (const auto& victim : victims_) found_pages += pages_of(victim);
  if (found_pages >= whole_pages && !even_if_pages_suffice) return false;
  found_pages = std::min(found_pages, whole_pages - 1);
  const std::uint64_t missing_pages = whole_pages - found_pages;
  // [begin, end) of the candidates, largest first: one that suffices alone, the smallest such; else
  // the largest ones until they suffice together.
  std::sort(candidates.begin(), candidates.end(),
            [](const Candidate& a, const Candidate& b) { return a.bytes > b.bytes; });
  std::size_t begin = 0;
  std::size_t end = 0;
  for (std::size_t i = candidates.size(); i-- > 0 && end == 0;) {
    if (sufficient(candidates[i], missing_pages)) begin = i, end = i + 1;
  }
  if (end == 0) {
    for (std::uint64_t pages = 0; end < candidates.size() && pages < missing_pages; ++end) {
      pages += candidates[end].pages;
    }
  }
  // Erase from the back of each queue, so that smaller indices stay valid.
  std::sort(candidates.begin() + static_cast<std::ptrdiff_t>(begin),
            candidates.begin() + static_cast<std::ptrdiff_t>(end),
            [](const Candidate& a, const Candidate& b) { return a.index > b.index; });
  for (std::size_t i = begin; i < end; ++i) {
    StreamPool& pool = *candidates[i].pool;
    pool.mutex.assert_held();
    const auto place = pool.pending.begin() + static_cast<std::ptrdiff_t>(candidates[i].index);
    for (const auto& event : place->events) {
      pool.stream.wait(*event);
      ++allocator_.event_waits_;
    }
    Block* const block = place->block;
    pool.pending.erase(place);
    pool.pending_bytes -= block->bytes;
    pool.free(block);
    events_.erase(&pool);  // the event is older than this wait, so the block's pages need a new one
  }
  return true;
}

}  // namespace sluice::allocator
