//! The archive as a whole: what is written is read, checked and extracted again; what is damaged, cut or
//! made up is refused. `double` is the second implementor of `Pages`: a model made in memory.

#[path = "format/convert.rs"]
mod convert;
#[path = "format/damage.rs"]
mod damage;
#[path = "format/double.rs"]
mod double;
#[path = "format/hostile.rs"]
mod hostile;
#[path = "format/lies.rs"]
mod lies;
#[path = "format/parts.rs"]
mod parts;
#[path = "format/resume.rs"]
mod resume;
#[path = "format/round_trip.rs"]
mod round_trip;
