#include "transport/loopback/local_streams.h"

namespace reshard {
namespace {

// Whether the memory of an operation is the wire form of its elements.
bool is_dense(const Operation& operation) {
  return operation.moves_bytes() && operation.box.ndim <= 1 &&
         (operation.box.ndim == 0 || operation.box.stride[0] == size_of(operation.wire));
}

// Where byte 0 of the message would lie for `segment` to be at its place in dense memory.
std::byte* dense_place(const Operation& operation, const Segment& segment, std::byte* base) {
  return base + operation.offset_bytes + segment.first * size_of(operation.wire);
}

}  // namespace

LocalStreams::LocalStreams(const Program& program, Device& device, ChunkCopier& copier)
    : program_(program), device_(device), copier_(copier) {
  bool needs_bounce = false;
  for (const LocalStream& pair : program.local_streams) {
    const Stream& send = program.streams[pair.send];
    const Stream& receive = program.streams[pair.receive];
    nbytes_ += send.nbytes;
    for (std::uint32_t i = 0; i < send.num_chunks; ++i) {
      chunks_.push_back(
          {&program.chunks[send.first_chunk + i], &program.chunks[receive.first_chunk + i]});
    }
  }
  for (const LocalChunk& chunk : chunks_) {
    for (std::uint32_t i = 0; i < chunk.send->num_segments && !needs_bounce; ++i) {
      const Segment& from = program.segments[chunk.send->first_segment + i];
      const Segment& to = program.segments[chunk.receive->first_segment + i];
      needs_bounce = !is_dense(program.operations[from.operation]) &&
                     !is_dense(program.operations[to.operation]);
    }
  }
  if (needs_bounce) bounce_.resize(static_cast<std::size_t>(program.chunk_bytes));
}

void LocalStreams::begin() { next_ = 0; }

void LocalStreams::step(const std::vector<std::byte*>& buffers) {
  const LocalChunk& chunk = chunks_[next_];
  copier_.for_each_piece(*chunk.send, [&](std::uint32_t i, const Segment& from) {
    const Segment& sent = program_.segments[chunk.send->first_segment + i];
    Segment to = program_.segments[chunk.receive->first_segment + i];
    to.first += from.first - sent.first;
    to.offset = from.offset;
    to.count = from.count;
    move(from, to, buffers);
  });
  ++next_;
}

void LocalStreams::move(const Segment& from, const Segment& to,
                        const std::vector<std::byte*>& buffers) {
  const Operation& source = program_.operations[from.operation];
  const Operation& destination = program_.operations[to.operation];
  std::byte* source_base = buffers[source.buffer];
  std::byte* destination_base = buffers[destination.buffer];
  Segment at_zero = from;
  at_zero.offset = 0;
  if (is_dense(destination)) {
    device_.pack(source, at_zero, source_base, dense_place(destination, to, destination_base),
                 /*is_read_next=*/false);
    return;
  }
  at_zero.first = to.first;
  at_zero.operation = to.operation;
  if (is_dense(source)) {
    device_.unpack(destination, at_zero, destination_base, dense_place(source, from, source_base));
    return;
  }
  device_.pack(source, from, source_base, bounce_.data(), /*is_read_next=*/true);
  device_.unpack(destination, to, destination_base, bounce_.data());
}

}  // namespace reshard
