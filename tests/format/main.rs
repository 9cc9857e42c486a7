//! The archive as a whole: what is written is read, checked and extracted again; what is damaged, cut or
//! made up is refused. `double` is the second implementor of `Pages`: a model made in memory.

mod damage;
mod double;
mod hostile;
mod lies;
mod parts;
mod resume;
mod round_trip;
