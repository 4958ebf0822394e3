// Where threads of a warp, a CTA or a cluster wait for each other.
#include "simt/cta.h"
#include "simt/device_memory.h"

namespace quaver::simt {

bool arrive(Meeting& meeting, const char* what, int expected) {
  if (meeting.arrived == 0) {
    meeting.what = what;
    meeting.expected = expected;
  }
  expect(meeting.what == std::string_view(what), what, ": expected ", meeting.what, ", where others wait");
  expect(meeting.expected == expected, what, " of ", expected, " threads: expected ", meeting.expected,
         ", as the others say");
  if (++meeting.arrived < expected) return false;
  meeting.arrived = 0;
  ++meeting.generation;
  wake(meeting.waiting);
  return true;
}

const std::byte (*meet_lanes(uint32_t mask, const char* what, const void* value, size_t bytes))[16] {
  Thread& thread = running();
  expect((mask >> thread.lane() & 1U) != 0, what, " with mask ", hexadecimal(mask), ": expected the own lane in it");
  WarpMeeting& warp = thread.cta->warp_meetings[{thread.warp(), mask}];
  auto& values = warp.values[warp.meeting.generation % 2];
  if (bytes > 0) std::memcpy(values[thread.lane()], value, bytes);
  if (!arrive(warp.meeting, what, std::popcount(mask))) {
    wait_in(warp.meeting.waiting, {.what = what});
  }
  return values;
}

int sync_threads(int value) {
  Thread& thread = running();
  Cta& cta = *thread.cta;
  Meeting& meeting = cta.named_barriers[0];
  int& sum = cta.sync_sums[meeting.generation % 2];
  if (meeting.arrived == 0) sum = 0;
  sum += value;
  const auto expected = static_cast<int>(cta.threads.size());
  if (!arrive(meeting, "__syncthreads", expected)) wait_in(meeting.waiting, {.what = "__syncthreads"});
  return sum;
}

void named_barrier(int id, int threads, bool wait) {
  Cta& cta = *running().cta;
  expect(id >= 1 && id <= 15, "named barrier ", id, ": expected 1 ... 15");
  expect(threads % 32 == 0 && threads > 0 && threads <= static_cast<int>(cta.threads.size()), "named barrier of ",
         threads, " threads: expected a multiple of 32, at most those of the CTA");
  meet_lanes(0xFFFFFFFFU, wait ? "bar.sync" : "bar.arrive", &id, sizeof(id));  // .aligned: the whole warp at once
  Meeting& meeting = cta.named_barriers[id];
  if (!arrive(meeting, "named barrier", threads) && wait) {
    wait_in(meeting.waiting, {.what = "named barrier", .number = static_cast<uint32_t>(id)});
  }
}

uint32_t shared_address(const void* pointer) {
  const uint32_t address = running().cta->memory.address(pointer);
  expect(address != 0, "shared_address(", pointer, "): expected shared memory of this CTA");
  return cluster_address(address, cluster_rank());
}

/// The CTA that an address names, and the address there.
static std::pair<Cta*, uint32_t> resolve(uint32_t address) {
  const uint32_t rank = address >> kRankShift;
  expect(std::cmp_less(rank, running().cta->wave->shape().cluster), "shared address ", address,
         ": expected one in a CTA of the cluster");
  return {running().cta->cluster + rank, address & ((1U << kRankShift) - 1)};
}

/// The address in this CTA, which it must name.
static uint32_t own_address(uint32_t address, const char* what) {
  const auto [cta, local] = resolve(address);
  expect(cta == running().cta, what, " of CTA ", cta->rank, " of the cluster: expected this one, ",
         running().cta->rank);
  return local;
}

uint32_t cluster_address(uint32_t address, int rank) {
  const int cluster = running().cta->wave->shape().cluster;
  expect(rank >= 0 && rank < cluster, "mapa to CTA ", rank, ": expected one of the ", cluster, " of the cluster");
  return resolve(address).second | static_cast<uint32_t>(rank) << kRankShift;
}

int cluster_rank() {
  return running().cta->rank;
}

void wait_for_launches_in_front() {
  running().cta->wave->wait_for_launches_in_front();
}

void cluster_arrive() {
  meet_lanes(0xFFFFFFFFU, "barrier.cluster.arrive", nullptr, 0);  // .aligned
  Meeting& meeting = running().cta->cluster->cluster_barrier;
  running().cluster_phase = meeting.generation;
  arrive(meeting, "barrier.cluster", meeting.expected);
}

void cluster_wait() {
  meet_lanes(0xFFFFFFFFU, "barrier.cluster.wait", nullptr, 0);
  Meeting& meeting = running().cta->cluster->cluster_barrier;
  if (meeting.generation == running().cluster_phase) wait_in(meeting.waiting, {.what = "barrier.cluster.wait"});
}

std::string place(uint32_t address) {
  const bool dynamic = address < kStaticAddress;
  return concat(dynamic ? "dynamic + " : "static + ", address - (dynamic ? kDynamicAddress : kStaticAddress));
}

uint8_t* shared_pointer(uint32_t address, int bytes) {
  const auto [cta, local] = resolve(address);
  uint8_t* pointer = cta->memory.pointer(local, bytes);
  expect(pointer != nullptr, bytes, " bytes at ", place(local), ": expected inside the ", cta->memory.dynamic_bytes,
         " bytes of dynamic shared memory");
  return pointer;
}

Mbarrier& Cta::mbarrier(uint32_t address) {
  const auto found = mbarriers.find(address);
  check_as(ErrorKind::kCuda, found != mbarriers.end(), "mbarrier at ", place(address), ": expected an initialised one");
  return found->second;
}

void Cta::complete_if_due(Mbarrier& barrier) {
  if (barrier.pending > 0 || barrier.bytes != 0) return;
  barrier.pending = barrier.count;
  ++barrier.phase;
  wake(barrier.waiting);
}

void mbarrier_init(uint32_t address, int arrivals) {
  expect(address % 8 == 0 && arrivals > 0, "mbarrier at ", place(address), " of ", arrivals,
         " arrivals: expected an address that is a multiple of 8, and at least one");
  Cta& cta = *running().cta;
  const uint32_t local = own_address(address, "mbarrier.init");
  expect(!cta.mbarriers.contains(local), "mbarrier at ", place(local), ": expected to be initialised once");
  cta.mbarriers[local] = {.count = arrivals, .pending = arrivals};
}

void mbarrier_arrive(uint32_t address, int bytes) {
  const auto [cta, local] = resolve(address);
  expect(cta->running_threads > 0, "arrival at an mbarrier of CTA ", cta->block.x, ": expected one that has not ended");
  Mbarrier& barrier = cta->mbarrier(local);
  expect(barrier.pending > 0, "mbarrier at ", place(local), ": expected no more than ", barrier.count, " arrivals");
  barrier.bytes += bytes;
  --barrier.pending;
  cta->complete_if_due(barrier);
}

bool mbarrier_test(uint32_t address, uint32_t parity, bool may_suspend) {
  const uint32_t local = own_address(address, "wait for an mbarrier");
  Mbarrier& barrier = running().cta->mbarrier(local);
  if ((barrier.phase & 1U) != parity) return true;
  if (!may_suspend) {
    poll("mbarrier.test_wait");
    return false;
  }
  wait_in(barrier.waiting, {.what = "mbarrier", .mbarrier = local, .number = parity});
  return (barrier.phase & 1U) != parity;
}

void copy_async(uint32_t to, const void* from, int bytes, uint32_t barrier, uint32_t ranks) {
  expect(bytes > 0 && bytes % 16 == 0 && to % 16 == 0 && reinterpret_cast<uintptr_t>(from) % 16 == 0, "bulk copy of ",
         bytes, " bytes from ", from, " to ", place(to), ": expected multiples of 16");
  expect(in_device_memory(from, bytes), "bulk copy of ", bytes, " bytes from ", from,
         ": expected a source inside one allocation");
  Cta* const first = running().cta->cluster;
  const bool multicast = ranks != 0;
  const uint32_t local = own_address(to, "bulk copy to shared memory");
  const uint32_t local_barrier = own_address(barrier, "mbarrier of a bulk copy");
  for (int rank = 0; rank < running().cta->wave->shape().cluster; ++rank) {
    Cta* cta = first + rank;
    if (multicast ? (ranks >> rank & 1U) == 0 : cta != running().cta) continue;
    uint8_t* destination = cta->memory.pointer(local, bytes);
    expect(destination != nullptr && local < kStaticAddress, "bulk copy of ", bytes, " bytes to ", place(local),
           ": expected inside the ", cta->memory.dynamic_bytes, " bytes of dynamic shared memory");
    static_cast<void>(cta->mbarrier(local_barrier));
    std::memset(destination, 0xFF, static_cast<size_t>(bytes));
    cta->wave->add_copy(
        {.to = cta, .destination = destination, .source = from, .bytes = bytes, .barrier = local_barrier});
  }
}

void store_async(uint32_t to, const float4& value, uint32_t barrier) {
  uint8_t* destination = shared_pointer(to, 16);
  const auto [cta, local_barrier] = resolve(barrier);
  expect(to % 16 == 0 && resolve(to).first == cta, "st.async to ", place(to & 0xFFFFFFU),
         ": expected a multiple of 16 and a barrier in the same CTA");
  expect(cta->running_threads > 0, "st.async to CTA ", cta->block.x, ": expected one that has not ended");
  std::memset(destination, 0xFF, 16);
  cta->wave->add_copy({.to = cta, .destination = destination, .value = value, .bytes = 16, .barrier = local_barrier});
}

}  // namespace quaver::simt
