//! Who owns which block of the KV pool. The pool is allocated once; sequences take blocks as they grow and
//! give them back when they are cut or dropped. Pure bookkeeping: the numbers live in backend buffers.

use crate::plan::KV_BLOCK;

/// Free blocks of the pool.
#[derive(Debug)]
pub struct BlockPool {
    free: Vec<u32>,
    total: u32,
}

/// Blocks of one sequence, in position order.
#[derive(Debug, Default)]
pub struct Blocks(Vec<u32>);

impl BlockPool {
    /// A pool of `total` free blocks.
    #[must_use]
    pub fn new(total: u32) -> Self {
        BlockPool { free: (0..total).rev().collect(), total }
    }

    /// Blocks not taken.
    #[must_use]
    pub fn free(&self) -> u32 {
        self.free.len() as u32
    }

    /// Blocks in all.
    #[must_use]
    pub fn total(&self) -> u32 {
        self.total
    }

    /// Grows a sequence to hold `positions`; returns the range of its blocks that are new, or `None`, and
    /// nothing taken, where the pool has too few.
    pub fn grow(&mut self, blocks: &mut Blocks, positions: u32) -> Option<std::ops::Range<usize>> {
        let needed = positions.div_ceil(KV_BLOCK) as usize;
        let held = blocks.0.len();
        let missing = needed.saturating_sub(held);
        let from = self.free.len().checked_sub(missing)?;
        blocks.0.extend(self.free.drain(from..).rev());
        Some(held..held.max(needed))
    }

    /// Cuts a sequence to `positions`, taking back the blocks behind them.
    pub fn cut(&mut self, blocks: &mut Blocks, positions: u32) {
        let keep = positions.div_ceil(KV_BLOCK) as usize;
        if keep < blocks.0.len() {
            self.free.extend(blocks.0.drain(keep..).rev());
        }
    }
}

impl Blocks {
    /// Physical blocks in position order.
    #[must_use]
    pub fn as_slice(&self) -> &[u32] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_never_share_a_block() {
        let mut pool = BlockPool::new(5);
        let (mut a, mut b) = (Blocks::default(), Blocks::default());

        assert_eq!(pool.grow(&mut a, 33), Some(0..2));
        assert_eq!(pool.grow(&mut b, 64), Some(0..2));
        assert_eq!(pool.grow(&mut a, 65), Some(2..3));

        let mut all: Vec<u32> = a.as_slice().iter().chain(b.as_slice()).copied().collect();
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2, 3, 4]);
    }

    #[test]
    fn a_pool_without_enough_blocks_refuses_and_takes_nothing() {
        let mut pool = BlockPool::new(2);
        let mut blocks = Blocks::default();

        assert_eq!(pool.grow(&mut blocks, 65), None);

        assert_eq!(pool.free(), 2);
        assert!(blocks.as_slice().is_empty());
    }

    #[test]
    fn cutting_gives_back_whole_blocks_and_keeps_the_partly_used_one() {
        let mut pool = BlockPool::new(4);
        let mut blocks = Blocks::default();
        let _ = pool.grow(&mut blocks, 100);
        let first = blocks.as_slice()[0];

        pool.cut(&mut blocks, 20);

        assert_eq!(blocks.as_slice(), [first]);
        assert_eq!(pool.free(), 3);
    }
}
